//! Connections to ranks of other hosts that an operation is the first to need.

use super::connected::CpuConnected;
use super::graph::RankGraph;
use super::inbox::ConnKey;
use super::places;
use super::wanted::CpuWanted;
use super::wiring::halves::{Halves, place_of};
use super::wiring::{Conn, layout};
use crate::launch::Channel;
use crate::machine::cpu::{FarConnector, FarEnds, FarNeed, FarRefused, NOT_MADE};
use crate::mem::Segment;
use crate::net::{RecvComm, SendComm};
use crate::proxy::{OpenEnd, OpeningEnd, ProxyBlock, ProxyEnd, RecvEnd, SendEnd};
use crate::transport::{Asking, Opener, Opening, Transport, TransportError, TransportKind};
use oxccl_device::conn::{RecvConn, SendConn};
use oxccl_device::distance::SlotStores;
use oxccl_shared::abi::{ConnLayout, Rank};
use std::sync::{Arc, Mutex, PoisonError};

/// What connections take of a rank's memory, by the rank at the other end: from it, and to it.
pub type FarBytes = Arc<Mutex<Vec<[usize; 2]>>>;

/// Connections over a network, as far as operations have not needed them yet.
pub struct FarLinks {
    rank: Rank,
    nranks: u32,
    graph: RankGraph,
    kinds: Vec<TransportKind>,
    transport: &'static dyn Transport,
    opener: Box<dyn Opener>,
    /// Slots of channels and of the mesh.
    layouts: [ConnLayout; 2],
    bytes: FarBytes,
}

/// This rank's ends that one step makes.
#[derive(Default)]
struct Step {
    to: Vec<Conn>,
    from: Vec<Conn>,
}

impl FarLinks {
    /// Those of a rank that is connected as far as init does it; what they take is added to `bytes`.
    pub fn new(wanted: &CpuWanted<'_>, connected: &mut CpuConnected, bytes: FarBytes) -> Option<FarLinks> {
        let (transport, opener) = connected.opener.take()?;
        Some(FarLinks {
            rank: wanted.rank,
            nranks: wanted.nranks,
            graph: connected.graph.clone(),
            kinds: connected.kinds.clone(),
            transport,
            opener,
            layouts: [ConnKey::Channel(0), ConnKey::Mesh].map(|key| layout(wanted, transport, key)),
            bytes,
        })
    }

    fn layout(&self, key: ConnKey) -> ConnLayout {
        let [channels, mesh] = self.layouts;
        if key == ConnKey::Mesh { mesh } else { channels }
    }

    fn is_far(&self, peer: Rank) -> bool {
        peer != self.rank && self.kinds[peer.index()] == self.transport.kind()
    }

    /// What `need` lacks, in the same order on both ends of each connection.
    fn missing(&self, need: FarNeed<'_>, ends: &FarEnds<'_>) -> Step {
        let (rank, graph) = (self.rank, &self.graph);
        let mut step = Step::default();
        let mut add = |key, to: Option<Rank>, from: Option<Rank>| {
            step.to.extend(to.map(|peer| (key, peer)));
            step.from.extend(from.map(|peer| (key, peer)));
        };
        match need {
            FarNeed::Rings(channels) => (0..channels.min(graph.ring_channels())).for_each(|channel| {
                let (next, before) =
                    (graph.along_ring(channel, rank, 1), graph.along_ring(channel, rank, self.nranks - 1));
                add(ConnKey::Channel(channel), Some(next), Some(before));
            }),
            FarNeed::Trees(channels) => (0..channels.min(graph.tree_channels())).for_each(|channel| {
                let links = graph.tree(rank, channel);
                let peers = links.up.into_iter().chain(links.down.into_iter().flatten());
                peers.for_each(|peer| add(ConnKey::Channel(channel), Some(peer), Some(peer)));
            }),
            FarNeed::Mesh => {
                (0..self.nranks).map(Rank).for_each(|peer| add(ConnKey::Mesh, Some(peer), Some(peer)));
            }
            FarNeed::Pairs(pairs) => pairs.iter().for_each(|(peer, is_send)| {
                add(ConnKey::Mesh, is_send.then_some(*peer), (!is_send).then_some(*peer));
            }),
        }
        let has_send = |(key, peer): &Conn| match key {
            ConnKey::Channel(channel) => has(&ends.channels[*channel as usize], *peer, true),
            ConnKey::Mesh => ends.send_to[peer.index()] != NOT_MADE,
        };
        let has_recv = |(key, peer): &Conn| match key {
            ConnKey::Channel(channel) => has(&ends.channels[*channel as usize], *peer, false),
            ConnKey::Mesh => ends.recv_from[peer.index()] != NOT_MADE,
        };
        step.to.retain(|conn| self.is_far(conn.1) && !has_send(conn));
        step.from.retain(|conn| self.is_far(conn.1) && !has_recv(conn));
        for list in [&mut step.to, &mut step.from] {
            list.sort_unstable_by_key(|(key, peer)| (key.tag(), *peer));
            list.dedup();
        }
        step
    }

    /// Makes this rank's half of a connection, and begins to make what sends from it.
    fn add_send(
        &self,
        conn: Conn,
        opening: Opening<Box<dyn SendComm>>,
        halves: &mut Halves,
        ends: &mut FarEnds<'_>,
    ) {
        let ((key, peer), layout) = (conn, self.layout(conn.0));
        let base = halves.place(layout);
        // SAFETY: `halves` has room for every connection of the step; `memory` and the end keep it mapped. The kernel is its only producer.
        let mut made = unsafe { SendConn::new(peer, base.as_ptr(), layout) };
        made.is_streamed = true;
        made.set_stores(SlotStores::Cached);
        if let Some(traffic) = ends.health.traffic().get(peer.index()) {
            made.count_in(traffic.clone());
        }
        let id = place_of(ends.channels.len(), conn, true);
        // SAFETY: as above.
        let block = unsafe { ProxyBlock::in_host(base, layout) };
        let open = sending(opening, block, id, halves.segment.clone());
        (ends.drive)(ProxyEnd::Opening(Box::new(OpeningEnd::new(id, layout, open))));
        self.count(peer, true, layout);
        if key == ConnKey::Mesh {
            ends.send_to[peer.index()] = ends.mesh.send.len() as u16;
        }
        channel_of(key, ends).send.push(made);
    }

    /// Makes this rank's half of a connection, and begins to make what receives into it.
    fn add_recv(
        &self,
        conn: Conn,
        opening: Opening<Box<dyn RecvComm>>,
        halves: &mut Halves,
        ends: &mut FarEnds<'_>,
    ) {
        let ((key, peer), layout) = (conn, self.layout(conn.0));
        let base = halves.place(layout);
        // SAFETY: as in `add_send`, with the kernel as the only consumer.
        let mut made = unsafe { RecvConn::new(peer, base.as_ptr(), layout) };
        if let Some(traffic) = ends.health.traffic().get(peer.index()) {
            made.count_in(traffic.clone());
        }
        let id = place_of(ends.channels.len(), conn, false);
        // SAFETY: as above.
        let block = unsafe { ProxyBlock::in_host(base, layout) };
        let open = receiving(opening, block, id, halves.segment.clone());
        (ends.drive)(ProxyEnd::Opening(Box::new(OpeningEnd::new(id, layout, open))));
        self.count(peer, false, layout);
        if key == ConnKey::Mesh {
            ends.recv_from[peer.index()] = ends.mesh.recv.len() as u16;
        }
        channel_of(key, ends).recv.push(made);
    }

    /// Counts what a connection takes.
    fn count(&self, peer: Rank, is_send: bool, layout: ConnLayout) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes[peer.index()][usize::from(is_send)] += layout.total_bytes();
    }
}

fn has(channel: &Channel, peer: Rank, is_send: bool) -> bool {
    match is_send {
        true => channel.send.iter().any(|conn| conn.peer() == peer),
        false => channel.recv.iter().any(|conn| conn.peer() == peer),
    }
}

impl FarConnector for FarLinks {
    fn connect(&mut self, need: FarNeed<'_>, mut ends: FarEnds<'_>) -> Result<(), FarRefused> {
        let Step { to, from } = self.missing(need, &ends);
        if to.is_empty() && from.is_empty() {
            return Ok(());
        }
        let layouts = to.iter().chain(&from).map(|(key, _)| self.layout(*key));
        let mut halves = Halves::of(layouts).map_err(|error| FarRefused(error.to_string()))?;
        let asking = |conns: &[Conn]| -> Vec<Asking> {
            conns.iter().map(|(key, peer)| Asking { tag: key.tag(), peer: *peer }).collect()
        };
        let opened = self.opener.open(&asking(&to), &asking(&from));
        let opened = opened.map_err(|error| FarRefused(error.to_string()))?;
        for (conn, opening) in to.into_iter().zip(opened.to) {
            self.add_send(conn, opening, &mut halves, &mut ends);
        }
        for (conn, opening) in from.into_iter().zip(opened.from) {
            self.add_recv(conn, opening, &mut halves, &mut ends);
        }
        let FarEnds { channels, mesh, send_to, recv_from, memory, .. } = ends;
        memory.push(halves.segment);
        for (channel, index) in channels.iter_mut().zip(0..) {
            places::place(channel, &self.graph, self.rank, index);
        }
        places::order_mesh(mesh, self.rank, self.nranks, send_to, recv_from);
        Ok(())
    }
}

fn channel_of<'a>(key: ConnKey, ends: &'a mut FarEnds<'_>) -> &'a mut Channel {
    match key {
        ConnKey::Mesh => ends.mesh,
        ConnKey::Channel(channel) => &mut ends.channels[channel as usize],
    }
}

/// Makes the sending end of a block when its communicator is there.
fn sending(
    mut opening: Opening<Box<dyn SendComm>>,
    block: ProxyBlock,
    place: crate::proxy::EndId,
    segment: Arc<Segment>,
) -> OpenEnd<ProxyEnd> {
    let mut parts = Some((block, segment));
    Box::new(move || {
        let Some(comm) = opening().map_err(TransportError::into_net)? else { return Ok(None) };
        let Some((block, segment)) = parts.take() else { return Ok(None) };
        // SAFETY: made once, so that it is the block's only consumer; it keeps the block's memory.
        let end = unsafe { SendEnd::new(comm, block, place)? };
        Ok(Some(ProxyEnd::Send(end.keeping(segment))))
    })
}

/// Makes the receiving end of a block when its communicator is there.
fn receiving(
    mut opening: Opening<Box<dyn RecvComm>>,
    block: ProxyBlock,
    place: crate::proxy::EndId,
    segment: Arc<Segment>,
) -> OpenEnd<ProxyEnd> {
    let mut parts = Some((block, segment));
    Box::new(move || {
        let Some(comm) = opening().map_err(TransportError::into_net)? else { return Ok(None) };
        let Some((block, segment)) = parts.take() else { return Ok(None) };
        // SAFETY: made once, so that it is the block's only producer; it keeps the block's memory.
        let end = unsafe { RecvEnd::new(comm, block, place)? };
        Ok(Some(ProxyEnd::Recv(end.keeping(segment))))
    })
}
