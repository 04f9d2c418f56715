//! A communicator's in-network reduction: its heads, whether all of them support it, and their connections.

use super::wiring::Wiring;
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::connect::collnet::{HeadListener, Heads, JoinedHead, refused};
use crate::launch::CollLinks;
use crate::mem::Segment;
use crate::net::Locality;
use crate::plan::Collnet;
use crate::proxy::{CollEnd, ProxyBlock};
use crate::transport::{TransportKind, stream_layout};
use oxccl_device::coll::ChainEnds;
use oxccl_device::conn::{RecvConn, SendConn};
use oxccl_shared::abi::{ConnLayout, Rank};
use oxccl_shared::algo::collnet::{ChainLinks, Owner};
use std::ptr::NonNull;
use std::sync::Arc;

/// Slots of protocols that the network does not use: the minimum of a layout.
const UNUSED_SLOT_BYTES: u32 = 256;

impl Wiring<'_> {
    /// Whether to search for in-network reduction; the same on every rank.
    pub(super) fn wants_collnet(&mut self) -> bool {
        let hosts = self.graph.hosts();
        let meets_over_network = |pair: &[Rank]| self.kind(pair[0], pair[1]) == TransportKind::Net;
        self.reducing.collnet = if !self.wanted.net.coll.enabled {
            Collnet::Disabled
        } else if hosts.len() < 2 {
            Collnet::OneHost
        } else if hosts.len() < self.wanted.net.coll.hosts_min as usize {
            Collnet::FewHosts
        } else if hosts.iter().any(|chain| chain.windows(2).any(meets_over_network)) {
            Collnet::NoChains
        } else {
            return true;
        };
        false
    }

    /// Searches for in-network reduction, if this rank is a head.
    pub(super) fn listen_collnet(&self) -> Result<HeadListener, ConnectError> {
        let rank = self.wanted.rank;
        if self.graph.head_index(rank).is_none() {
            return Ok(HeadListener::member());
        }
        // A host has one head.
        let place = Locality { numa_node: self.peers[rank.index()].numa_node, ..Locality::default() };
        HeadListener::listen(self.wanted.net, rank, &place, 1)
    }

    /// Joins the heads, if all have in-network reduction; otherwise no rank uses it.
    pub(super) fn join_collnet(
        &mut self,
        bootstrap: &Bootstrap,
        mine: HeadListener,
    ) -> Result<(), ConnectError> {
        let Heads { collnet, lack, mut mine } = mine.gather(bootstrap, &[self.graph.hosts().to_vec()])?;
        (self.reducing.collnet, self.reducing.lack) = (collnet, lack);
        match mine.pop() {
            Some(joining) => self.connect_head(joining.join(bootstrap, self.wanted.net_timeout)?),
            None => Ok(()),
        }
    }

    /// The connections between this head's kernel and the network: one in each direction.
    fn connect_head(&mut self, joined: JoinedHead) -> Result<(), ConnectError> {
        let JoinedHead { comm, head, head_of, next_head, .. } = joined;
        let layout = ConnLayout {
            ll_slot_bytes: UNUSED_SLOT_BYTES,
            ll128_slot_bytes: UNUSED_SLOT_BYTES,
            // A plan's slices may be as long as a stream's slots.
            simple_slot_bytes: stream_layout(self.wanted.mesh_layout).simple_slot_bytes,
        };
        let made = Segment::private(2 * layout.total_bytes());
        let segment = Arc::new(made.map_err(|error| self.memory_error(error))?);
        let base = |block: usize| {
            // SAFETY: an address within a mapping is not null.
            unsafe { NonNull::new_unchecked(segment.base().wrapping_add(block * layout.total_bytes())) }
        };
        let (up, down) = (base(0), base(1));
        // SAFETY: each block is half of the segment, zeroed and 128-byte aligned, and `memory` and the end keep it
        // mapped. The kernel is the only producer of one and the only consumer of the other, the end the reverse.
        let (send, recv, end) = unsafe {
            let blocks = [ProxyBlock::in_host(up, layout), ProxyBlock::in_host(down, layout)];
            (
                SendConn::new(next_head, up.as_ptr(), layout),
                RecvConn::new(next_head, down.as_ptr(), layout),
                CollEnd::new(comm, (head, head_of), blocks, segment.clone()),
            )
        };
        let end = end.map_err(|source| refused(self.wanted.rank, source))?;
        self.reducing.places = [self.mesh.send.len() as u16, self.mesh.recv.len() as u16];
        self.mesh.send.push(send);
        self.mesh.recv.push(recv);
        self.reducing.bytes = segment.len();
        self.memory.push(segment);
        self.reducing.links = Some(CollLinks::new(end, next_head));
        Ok(())
    }

    /// Where each rank is, seen from this one's place in its host's chain.
    pub(super) fn chain_owners(&self) -> Vec<Owner> {
        let (chain, me) = (self.own_chain(), self.wanted.rank);
        (0..self.wanted.nranks).map(|rank| Owner::of(chain, me, Rank(rank))).collect()
    }

    /// This rank's position in its host's chain. Its connections are the mesh's, except the head's to the network.
    pub fn chain(&self, send_to: &[u16], recv_from: &[u16]) -> ChainEnds {
        let (chain, me) = (self.own_chain(), self.wanted.rank);
        let Some(at) = chain.iter().position(|rank| *rank == me) else { return ChainEnds::default() };
        let mut ends = ChainEnds {
            links: ChainLinks { is_head: at == 0, has_below: at + 1 < chain.len() },
            ..ChainEnds::default()
        };
        if let Some(below) = chain.get(at + 1) {
            ends.below_send = [send_to[below.index()]];
            ends.below_recv = [recv_from[below.index()]];
        }
        match at.checked_sub(1) {
            Some(above) => {
                ends.above_send = [send_to[chain[above].index()]];
                ends.above_recv = [recv_from[chain[above].index()]];
            }
            // Without in-network reduction the chain is unused.
            None => {
                let [send, recv] = self.reducing.places;
                (ends.above_send, ends.above_recv) = ([send], [recv]);
            }
        }
        ends
    }
}
