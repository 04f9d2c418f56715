//! A communicator's in-network reduction: its heads, whether all of them support it, and their connections.

use super::wiring::Wiring;
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::connect::collnet::{HeadListener, Heads, JoinedHead, refused};
use crate::launch::{CollLinks, HostPlaces};
use crate::mem::Segment;
use crate::net::Locality;
use crate::plan::Collnet;
use crate::proxy::{CollEnd, ProxyBlock};
use crate::transport::{TransportKind, stream_layout};
use oxccl_device::conn::{RecvConn, SendConn};
use oxccl_device::traffic::Traffic;
use oxccl_shared::abi::{ConnLayout, Rank};
use oxccl_shared::algo::collnet::{Owner, Shape};
use std::ptr::NonNull;
use std::sync::Arc;

/// Slots of protocols that the network does not use: the minimum of a layout.
const UNUSED_SLOT_BYTES: u32 = 256;

impl Wiring<'_> {
    /// Whether to search for in-network reduction; the same on every rank.
    pub(super) fn wants_collnet(&mut self) -> bool {
        let hosts = self.graph.hosts();
        // Neighbours in chains, and heads of stars with all.
        let is_far = |one: Rank, other: Rank| self.kind(one, other) == TransportKind::Net;
        let meets_over_network = |host: &Vec<Rank>| {
            host.windows(2).any(|pair| is_far(pair[0], pair[1]))
                || host[1..].iter().any(|rank| is_far(host[0], *rank))
        };
        self.reducing.collnet = if !self.wanted.net.coll.enabled {
            Collnet::Disabled
        } else if hosts.len() < 2 {
            Collnet::OneHost
        } else if hosts.len() < self.wanted.net.coll.hosts_min as usize {
            Collnet::FewHosts
        } else if hosts.iter().any(meets_over_network) {
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
        let (mut send, mut recv, end) = unsafe {
            let blocks = [ProxyBlock::in_host(up, layout), ProxyBlock::in_host(down, layout)];
            (
                SendConn::new(next_head, up.as_ptr(), layout),
                RecvConn::new(next_head, down.as_ptr(), layout),
                CollEnd::new(comm, (head, head_of), blocks, segment.clone()),
            )
        };
        let end = end.map_err(|source| refused(self.wanted.rank, source))?;
        // What goes to the network has not gone to the next head.
        let traffic = Arc::<Traffic>::default();
        send.count_in(traffic.clone());
        recv.count_in(traffic.clone());
        self.reducing.places = [self.mesh.send.len() as u16, self.mesh.recv.len() as u16];
        self.mesh.send.push(send);
        self.mesh.recv.push(recv);
        self.reducing.bytes = segment.len();
        self.memory.push(segment);
        self.reducing.links = Some(CollLinks::new(end, next_head, traffic));
        Ok(())
    }

    /// This rank's connections in its host, if a network reduces: the mesh's, except the head's to the network.
    pub(super) fn host_places(&self, shape: Shape, send_to: &[u16], recv_from: &[u16]) -> HostPlaces {
        if !matches!(self.reducing.collnet, Collnet::There(_)) {
            return HostPlaces::default();
        }
        let (host, me) = (self.own_host(), self.wanted.rank);
        let Some(place) = shape.place(host, me) else { return HostPlaces::default() };
        let [above_send, above_recv] = match place.above {
            Some(above) => [send_to[above.index()], recv_from[above.index()]],
            None => self.reducing.places,
        };
        let all = (0..self.wanted.nranks).map(Rank);
        HostPlaces {
            links: place.links(),
            below_recv: place.below.iter().map(|below| recv_from[below.index()]).collect(),
            below_send: place.below.iter().map(|below| send_to[below.index()]).collect(),
            above_recv,
            above_send,
            owners: all.map(|rank| Owner::of(shape, host, me, rank)).collect(),
        }
    }
}
