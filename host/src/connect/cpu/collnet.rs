//! A communicator's in-network reduction: its heads, whether all of them support it, and their connections.

use super::wiring::Wiring;
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::launch::CollLinks;
use crate::mem::Segment;
use crate::net::coll::{self, CollComm, CollConnector, CollListener, Head};
use crate::net::{HANDLE_BYTES, Locality, NetError, NetHandle, nearest};
use crate::plan::tuning::NetSpeed;
use crate::plan::{Collnet, CollnetFacts, Reduces};
use crate::proxy::{CHECKED, CollEnd, ProxyBlock};
use crate::transport::{TransportKind, stream_layout};
use crate::wire::{Message, cut};
use oxccl_device::coll::ChainEnds;
use oxccl_device::conn::{RecvConn, SendConn};
use oxccl_shared::abi::{ConnLayout, Rank};
use oxccl_shared::algo::collnet::ChainLinks;
use serde::{Deserialize, Serialize};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two polls of heads that are joining.
const REST: Duration = Duration::from_micros(200);
/// Slots of protocols that the network does not use: the minimum of a layout.
const UNUSED_SLOT_BYTES: u32 = 256;

/// A communicator's in-network reduction.
pub struct Reducing {
    /// What it supports, or why there is none.
    pub collnet: Collnet,
    /// The reason of the head without one, if there is one.
    pub lack: String,
    /// This rank's end, if it is a head.
    pub links: Option<CollLinks>,
    /// Bytes of its connections, in this rank's memory.
    pub bytes: usize,
    /// Channel indices in the mesh: to the network and from it.
    places: [u16; 2],
}

impl Default for Reducing {
    fn default() -> Reducing {
        Reducing { collnet: Collnet::Disabled, lack: String::new(), links: None, bytes: 0, places: [0; 2] }
    }
}

impl Reducing {
    /// Where the connections to the network begin among the mesh's, at a head.
    pub(super) fn places(&self) -> Option<[u16; 2]> {
        self.links.as_ref().map(|_| self.places)
    }
}

/// A rank's contribution: a head's listener and its info for the others.
pub(super) struct HeadListener {
    info: HeadInfo,
    listener: Option<Box<dyn CollListener>>,
}

/// What ranks tell each other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum HeadInfo {
    /// Not a head.
    Member,
    /// A head with in-network reduction.
    Head { handle: NetHandle, reduces: Reduces, buffer_max_bytes: u64, speed_mbps: u32, latency_us: f32 },
    /// A head without it, and the reason.
    Lacks(String),
}

impl Wiring<'_> {
    /// Whether to search for in-network reduction; the same on every rank.
    pub(super) fn wants_collnet(&mut self) -> bool {
        let hosts = self.graph.hosts();
        let meets_over_network = |pair: &[Rank]| self.kind(pair[0], pair[1]) == TransportKind::Net;
        self.reducing.collnet = if !self.wanted.net.coll.enabled {
            Collnet::Disabled
        } else if hosts.len() < 2 {
            Collnet::OneHost
        } else if hosts.iter().any(|chain| chain.windows(2).any(meets_over_network)) {
            Collnet::NoChains
        } else {
            return true;
        };
        false
    }

    /// Searches for in-network reduction, if this rank is a head.
    pub(super) fn listen_collnet(&self) -> Result<HeadListener, ConnectError> {
        if self.graph.head_index(self.wanted.rank).is_none() {
            return Ok(HeadListener { info: HeadInfo::Member, listener: None });
        }
        match self.listen_as_head() {
            Ok((info, listener)) => Ok(HeadListener { info, listener: Some(listener) }),
            Err(error @ NetError::Absent { .. }) => Ok(HeadListener {
                info: HeadInfo::Lacks(cut(&error.to_string(), REASON_BYTES_MAX).to_owned()),
                listener: None,
            }),
            Err(source) => Err(self.refused(source)),
        }
    }

    fn listen_as_head(&self) -> Result<(HeadInfo, Box<dyn CollListener>), NetError> {
        let net = coll::find(self.wanted.net)?;
        let (dtype, op) = CHECKED;
        if !net.reduces(dtype, op)? {
            let reason = format!("it has no {op} of {dtype}, by which heads tell operations apart");
            return Err(NetError::Absent { net: net.name().to_owned(), reason });
        }
        let here = self.peers[self.wanted.rank.index()];
        // A host has one head.
        let place = Locality { numa_node: here.numa_node, ..Locality::default() };
        let device = nearest(net.devices(), |device| net.properties(device), &place)?;
        let facts = net.properties(device)?;
        let (handle, listener) = net.listen(device)?;
        let info = HeadInfo::Head {
            handle,
            reduces: Reduces::of(|dtype, op| net.reduces(dtype, op))?,
            buffer_max_bytes: facts.message_max_bytes as u64,
            speed_mbps: facts.speed_mbps,
            latency_us: facts.latency_us,
        };
        Ok((info, listener))
    }

    /// Joins the heads, if all have in-network reduction; otherwise no rank uses it.
    pub(super) fn join_collnet(
        &mut self,
        bootstrap: &Bootstrap,
        mine: HeadListener,
    ) -> Result<(), ConnectError> {
        let blocks = bootstrap.all_gather(&mine.info.to_bytes())?;
        let mut infos = Vec::with_capacity(blocks.len());
        for (peer, block) in (0..).map(Rank).zip(&blocks) {
            infos.push(HeadInfo::from_bytes(block).map_err(|_| ConnectError::Malformed { peer })?);
        }
        let heads: Vec<Rank> = self.graph.hosts().iter().map(|chain| chain[0]).collect();
        let (mut handles, mut all) = (Vec::new(), Collnet::Lacking);
        for &head in &heads {
            match &infos[head.index()] {
                HeadInfo::Lacks(why) => {
                    self.reducing.lack = format!("rank {head}: {why}");
                    tracing::warn!("NCCL_COLLNET_ENABLE: {}; no network reduces", self.reducing.lack);
                    self.reducing.collnet = Collnet::Lacking;
                    return Ok(());
                }
                HeadInfo::Member => return Err(ConnectError::Malformed { peer: head }),
                info @ HeadInfo::Head { handle, .. } => {
                    handles.push(*handle);
                    all = info.and(all, heads.len() as u32);
                }
            }
        }
        self.reducing.collnet = all;
        let (Some(index), Some(listener)) = (self.graph.head_index(self.wanted.rank), mine.listener) else {
            return Ok(());
        };
        let head = Head { index, count: heads.len() as u32 };
        let joining = listener.join(&handles, index).map_err(|source| self.refused(source))?;
        let comm = self.until_joined(bootstrap, joining, head)?;
        let next_head = heads[(index as usize + 1) % heads.len()];
        self.connect_head(comm, head, next_head)
    }

    fn until_joined(
        &self,
        bootstrap: &Bootstrap,
        mut joining: Box<dyn CollConnector>,
        head: Head,
    ) -> Result<Box<dyn CollComm>, ConnectError> {
        let begin = Instant::now();
        loop {
            if let Some(comm) = joining.poll_join().map_err(|source| self.refused(source))? {
                return Ok(comm);
            }
            // A dead head will not join.
            bootstrap.check_whole()?;
            if begin.elapsed() > self.wanted.net_timeout {
                let reason = format!("not all heads came together within {:?}", self.wanted.net_timeout);
                let device = format!("network that reduces ({head})");
                return Err(self.refused(NetError::of_call(&device, "connect", reason)));
            }
            std::thread::sleep(REST);
        }
    }

    /// The connections between this head's kernel and the network: one in each direction.
    fn connect_head(
        &mut self,
        comm: Box<dyn CollComm>,
        head: Head,
        next_head: Rank,
    ) -> Result<(), ConnectError> {
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
                CollEnd::new(comm, head, blocks, segment.clone()),
            )
        };
        let end = end.map_err(|source| self.refused(source))?;
        self.reducing.places = [self.mesh.send.len() as u16, self.mesh.recv.len() as u16];
        self.mesh.send.push(send);
        self.mesh.recv.push(recv);
        self.reducing.bytes = segment.len();
        self.memory.push(segment);
        self.reducing.links = Some(CollLinks::new(end, next_head));
        Ok(())
    }

    /// This rank's position in its host's chain. Its connections are the mesh's, except the head's to the network.
    pub fn chain(&self, send_to: &[u16], recv_from: &[u16]) -> ChainEnds {
        let rank = self.wanted.rank;
        let chain = self.graph.hosts().iter().find(|chain| chain.contains(&rank));
        let Some((chain, at)) = chain.and_then(|chain| Some((chain, chain.iter().position(|r| *r == rank)?)))
        else {
            return ChainEnds::default();
        };
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

    fn refused(&self, source: NetError) -> ConnectError {
        ConnectError::Net { rank: self.wanted.rank, peer: None, source: Box::new(source) }
    }
}

/// Of a reason in a message.
const REASON_BYTES_MAX: usize = 512;

impl Message for HeadInfo {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 64 + HANDLE_BYTES + REASON_BYTES_MAX;

    fn is_sound(&self) -> bool {
        match self {
            HeadInfo::Member => true,
            HeadInfo::Lacks(why) => why.len() <= REASON_BYTES_MAX,
            HeadInfo::Head { reduces, latency_us, .. } => {
                reduces.is_sound() && latency_us.is_finite() && *latency_us >= 0.0
            }
        }
    }
}

impl HeadInfo {
    /// The common capabilities of this head's network and the previous ones.
    fn and(&self, before: Collnet, nhosts: u32) -> Collnet {
        let HeadInfo::Head { reduces, buffer_max_bytes, speed_mbps, latency_us, .. } = self else {
            return before;
        };
        let (gbytes, latency_us) = (f64::from((*speed_mbps).max(1)) / 8e3, f64::from(*latency_us));
        let mine = CollnetFacts {
            reduces: *reduces,
            buffer_max_bytes: *buffer_max_bytes,
            nhosts,
            speed: NetSpeed { gbytes, latency_us },
        };
        let Collnet::There(others) = before else { return Collnet::There(mine) };
        Collnet::There(CollnetFacts {
            reduces: mine.reduces.and(others.reduces),
            buffer_max_bytes: mine.buffer_max_bytes.min(others.buffer_max_bytes),
            nhosts,
            speed: NetSpeed {
                gbytes: gbytes.min(others.speed.gbytes),
                latency_us: latency_us.max(others.speed.latency_us),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{DataType, RedOp};

    fn head(reduces: Reduces, speed_mbps: u32) -> HeadInfo {
        let (handle, buffer_max_bytes) = (NetHandle([7; HANDLE_BYTES]), 1 << 30);
        HeadInfo::Head { handle, reduces, buffer_max_bytes, speed_mbps, latency_us: 2.5 }
    }

    #[test]
    fn infos_survive_the_wire() {
        let infos = [HeadInfo::Member, HeadInfo::Lacks("no plugin".into()), head(Reduces::ALL, 100_000)];
        for info in infos {
            let bytes = info.to_bytes();
            assert_eq!(HeadInfo::from_bytes(&bytes), Ok(info));
            assert!(HeadInfo::from_bytes(&[&[9], &bytes[1..]].concat()).is_err());
        }
        let bytes = head(Reduces::ALL, 1).to_bytes();
        for cut in 1..bytes.len() {
            assert!(HeadInfo::from_bytes(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(HeadInfo::from_bytes(&[]).is_err());
    }

    #[test]
    fn heads_have_in_common_what_all_have() {
        let floats = Reduces::of(|dtype, op| Ok::<_, ()>(dtype == DataType::F32 && op == RedOp::Sum));
        let infos = [head(Reduces::ALL, 40_000), head(floats.unwrap(), 8_000)];
        let all = infos.iter().fold(Collnet::Lacking, |all, info| info.and(all, 2));
        let Collnet::There(facts) = all else { panic!("both have one") };
        assert_eq!((facts.nhosts, facts.speed.gbytes, facts.speed.latency_us), (2, 1.0, 2.5));
        assert!(
            facts.reduces.has(DataType::F32, RedOp::Sum) && !facts.reduces.has(DataType::F32, RedOp::Max)
        );
    }
}
