//! The connections of one rank as they come into being.

use super::connect::{ConnectError, Connected, Wanted};
use super::graph::Graph;
use super::inbox::{ConnKey, Inbox};
use crate::launch::Channel;
use crate::mem::{self, MemError, Segment, ShmFile, ShmName};
use crate::proxy::Links;
use crate::transport::{PeerInfo, TransportKind};
use oxccl_device::coll::{Endpoints, RingEnds, TreeEnds};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::direct;
use std::sync::Arc;

pub(super) struct Wiring<'a> {
    wanted: &'a Wanted<'a>,
    graph: Graph,
    peers: Vec<PeerInfo>,
    channels: Vec<Channel>,
    mesh: Channel,
    links: Links,
    memory: Vec<Arc<Segment>>,
    inbound_bytes: Vec<usize>,
    outbound_bytes: Vec<usize>,
}

impl<'a> Wiring<'a> {
    pub fn new(wanted: &'a Wanted<'a>, graph: Graph, peers: Vec<PeerInfo>) -> Self {
        let channels = (0..graph.channels()).map(|_| Channel::default()).collect();
        let nranks = wanted.nranks as usize;
        Wiring {
            wanted,
            graph,
            peers,
            channels,
            mesh: Channel::default(),
            links: Links::default(),
            memory: Vec::new(),
            inbound_bytes: vec![0; nranks],
            outbound_bytes: vec![0; nranks],
        }
    }

    /// How two ranks are connected; the same seen from either.
    fn kind(&self, a: u32, b: u32) -> TransportKind {
        let chosen = self.wanted.allowed.choose(&self.peers[a as usize], &self.peers[b as usize]);
        chosen.unwrap_or(TransportKind::InProcess)
    }

    fn is_local(&self, a: u32, b: u32) -> bool {
        a != b && self.kind(a, b) != TransportKind::Tcp
    }

    fn conns(&mut self, key: ConnKey) -> &mut Conns {
        match key {
            ConnKey::Mesh => &mut self.mesh.conns,
            ConnKey::Channel(channel) => &mut self.channels[channel as usize].conns,
        }
    }

    fn memory_error(&self, source: MemError) -> ConnectError {
        ConnectError::Memory { rank: self.wanted.rank, source }
    }

    /// Where the connections of `rank`'s local producers lie.
    fn local_inbox(&self, rank: u32) -> Inbox {
        let Wanted { nranks, ring_layout, mesh_layout, .. } = *self.wanted;
        Inbox::new(&self.graph, nranks, rank, ring_layout, mesh_layout, |from| self.is_local(rank, from))
    }

    /// Makes the inbox that local peers write into, and our ends of it.
    pub fn make_memory(&mut self) -> Result<Option<ShmFile>, ConnectError> {
        let Wanted { rank, nranks, comm_hash, .. } = *self.wanted;
        let inbox = self.local_inbox(rank);
        if inbox.entries.is_empty() {
            return Ok(None);
        }
        let has = |kind| (0..nranks).any(|peer| peer != rank && self.kind(rank, peer) == kind);
        let (segment, file) = if has(TransportKind::Shm) {
            mem::sweep_stale();
            let name = ShmName::new(comm_hash, Rank(rank));
            let made = Segment::shm_create(&name, inbox.len_bytes);
            let (segment, file) = made.map_err(|error| self.memory_error(error))?;
            (segment, Some(file))
        } else {
            let made = Segment::private(inbox.len_bytes);
            (made.map_err(|error| self.memory_error(error))?, None)
        };
        let segment = Arc::new(segment);
        if has(TransportKind::InProcess) {
            mem::publish((comm_hash, Rank(rank)), &segment).map_err(|error| self.memory_error(error))?;
        }
        for entry in &inbox.entries {
            let base = segment.base().wrapping_add(entry.offset);
            // SAFETY: the inbox laid the entry out within the segment, 128-byte aligned and zeroed; `memory` keeps it mapped
            // as long as its ends; this rank is the only consumer of its inbox.
            let conn = unsafe { RecvConn::new(Rank(entry.from), base, entry.layout) };
            self.inbound_bytes[entry.from as usize] += entry.layout.total_bytes();
            self.conns(entry.key).recv.push(conn);
        }
        self.memory.push(segment);
        Ok(file)
    }

    /// Maps the inboxes of local peers, and our ends of them.
    pub fn open_peers(&mut self) -> Result<(), ConnectError> {
        let Wanted { rank, comm_hash, nranks, .. } = *self.wanted;
        for peer in (0..nranks).filter(|peer| *peer != rank) {
            if !self.is_local(rank, peer) {
                continue;
            }
            let inbox = self.local_inbox(peer);
            let segment = if self.kind(rank, peer) == TransportKind::InProcess {
                mem::lookup((comm_hash, Rank(peer)))
                    .ok_or_else(|| ConnectError::PeerFailed { peer, why: "its memory is gone".to_owned() })?
            } else {
                let opened = Segment::shm_open(&ShmName::new(comm_hash, Rank(peer)), inbox.len_bytes);
                Arc::new(opened.map_err(|error| self.memory_error(error))?)
            };
            for entry in inbox.entries.iter().filter(|entry| entry.from == rank) {
                let base = segment.base().wrapping_add(entry.offset);
                // SAFETY: as in `make_memory`, seen from the producer: the layout was computed alike, the segment's length
                // checked, and this rank is the entry's only producer.
                let conn = unsafe { SendConn::new(Rank(peer), base, entry.layout) };
                self.conns(entry.key).send.push(conn);
            }
            self.memory.push(segment);
        }
        Ok(())
    }

    /// Names the connections that each algorithm uses.
    pub fn finish(mut self) -> Connected {
        let Wanted { rank, nranks, .. } = *self.wanted;
        let mut channels = std::mem::take(&mut self.channels);
        for (index, channel) in channels.iter_mut().enumerate() {
            channel.ends = self.channel_ends(&channel.conns, index as u32);
        }
        let send_to: Vec<u16> = (0..nranks).map(|peer| send_index(&self.mesh.conns, peer)).collect();
        let recv_from: Vec<u16> = (0..nranks).map(|peer| recv_index(&self.mesh.conns, peer)).collect();
        let others = (0..nranks).filter(|peer| *peer != rank);
        self.mesh.ends = Endpoints {
            mesh_recv: others.map(|peer| recv_from[peer as usize]).collect(),
            mesh_send: direct::peers(Rank(rank), nranks).map(|peer| send_to[peer.index()]).collect(),
            ..Endpoints::default()
        };
        let kinds = (0..nranks).map(|peer| self.kind(rank, peer)).collect();
        Connected {
            channels,
            mesh: self.mesh,
            send_to,
            recv_from,
            links: self.links,
            kinds,
            peers: self.peers,
            graph: self.graph,
            inbound_bytes: self.inbound_bytes,
            outbound_bytes: self.outbound_bytes,
            memory: self.memory,
        }
    }

    fn channel_ends(&self, conns: &Conns, channel: u32) -> Endpoints {
        let Wanted { rank, nranks, .. } = *self.wanted;
        let mut ends = Endpoints::default();
        if channel < self.graph.ring_channels {
            ends.ring = RingEnds {
                order: self.graph.ring().to_vec(),
                position: self.graph.position(rank),
                recv: [recv_index(conns, self.graph.along_ring(rank, nranks - 1))],
                send: [send_index(conns, self.graph.along_ring(rank, 1))],
            };
        }
        if channel < self.graph.tree_channels {
            let links = self.graph.tree(rank, channel);
            let mut tree = TreeEnds { links, ..TreeEnds::default() };
            for child in links.down.iter().flatten() {
                tree.child_recv[tree.children] = recv_index(conns, child.0);
                tree.child_send[tree.children] = send_index(conns, child.0);
                tree.children += 1;
            }
            if let Some(parent) = links.up {
                tree.parent_recv = [recv_index(conns, parent.0)];
                tree.parent_send = [send_index(conns, parent.0)];
            }
            ends.tree = tree;
        }
        ends
    }
}

/// The connection to `peer`; 0 where there is none, which is never used then.
fn send_index(conns: &Conns, peer: u32) -> u16 {
    conns.send.iter().position(|conn| conn.peer.0 == peer).unwrap_or(0) as u16
}

/// The connection from `peer`; 0 where there is none, which is never used then.
fn recv_index(conns: &Conns, peer: u32) -> u16 {
    conns.recv.iter().position(|conn| conn.peer.0 == peer).unwrap_or(0) as u16
}
