//! The connections of one rank as they come into being.

use super::collnet::Reducing;
use super::connect::{ConnectError, Connected, Wanted};
use super::graph::Graph;
use super::inbox::{ConnKey, Inbox};
use super::networks::Dialing;
use crate::bootstrap::Bootstrap;
use crate::launch::{Channel, NetLinks};
use crate::mem::{self, MemError, Segment, ShmFile, ShmName};
use crate::net::stream::{StreamRecv, StreamSend};
use crate::net::{Whereabouts, find, nearest};
use crate::proxy::progress::{Place, ProxyBlock, ProxyChannel, ProxyEnd, ProxyParts, RecvEnd, SendEnd};
use crate::proxy::{LinkGroup, Links};
use crate::transport::{PeerInfo, TransportKind, stream_layout};
use oxccl_device::coll::TreeEnds;
use oxccl_device::conn::{RecvConn, SendConn};
use oxccl_shared::abi::{ChannelId, ConnLayout, Rank};
use oxccl_shared::algo::direct;
use std::ptr::NonNull;
use std::sync::Arc;

/// A connection's name and the rank at its other end.
type Conn = (ConnKey, u32);

/// What the streams of connections are for, as the bootstrap's handshake says it.
const PURPOSE: u32 = 1;

/// The local blocks of streams, one after the other.
struct StreamMemory {
    segment: Arc<Segment>,
    used_bytes: usize,
}

impl StreamMemory {
    fn place(&mut self, layout: ConnLayout) -> NonNull<u8> {
        let base = self.segment.base().wrapping_add(self.used_bytes);
        self.used_bytes += layout.total_bytes();
        // SAFETY: an address within a mapping is not null.
        unsafe { NonNull::new_unchecked(base) }
    }
}

pub(super) struct Wiring<'a> {
    pub(super) wanted: &'a Wanted<'a>,
    pub(super) graph: Graph,
    pub(super) peers: Vec<PeerInfo>,
    channels: Vec<Channel>,
    pub(super) mesh: Channel,
    links: Links,
    net_links: Option<NetLinks>,
    pub(super) reducing: Reducing,
    pub(super) memory: Vec<Arc<Segment>>,
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
            net_links: None,
            reducing: Reducing::default(),
            memory: Vec::new(),
            inbound_bytes: vec![0; nranks],
            outbound_bytes: vec![0; nranks],
        }
    }

    /// How two ranks are connected; the same seen from either.
    pub(super) fn kind(&self, a: u32, b: u32) -> TransportKind {
        let chosen = self.wanted.allowed.choose(&self.peers[a as usize], &self.peers[b as usize]);
        chosen.unwrap_or(TransportKind::InProcess)
    }

    fn is_local(&self, a: u32, b: u32) -> bool {
        a != b && !self.kind(a, b).is_remote()
    }

    fn channel(&mut self, key: ConnKey) -> &mut Channel {
        match key {
            ConnKey::Mesh => &mut self.mesh,
            ConnKey::Channel(channel) => &mut self.channels[channel as usize],
        }
    }

    pub(super) fn memory_error(&self, source: MemError) -> ConnectError {
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
            self.channel(entry.key).recv.push(conn);
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
                self.channel(entry.key).send.push(conn);
            }
            self.memory.push(segment);
        }
        Ok(())
    }

    /// Opens a stream for every connection to or from another host.
    pub fn open_streams(&mut self, bootstrap: &Bootstrap) -> Result<(), ConnectError> {
        let rank = self.wanted.rank;
        let conns = |inbound| self.remote_conns(TransportKind::Tcp, inbound);
        let (to, from) = (conns(false), conns(true));
        let mut groups: Vec<LinkGroup> = (0..=self.channels.len()).map(|_| LinkGroup::default()).collect();
        let Some(mut memory) = self.stream_memory(&to, &from)? else { return Ok(()) };
        let broken = |source| ConnectError::Stream { rank, source };
        for &(key, peer) in &to {
            let (layout, stream) =
                (self.layout(key), bootstrap.connect_stream(Rank(peer), PURPOSE, key.tag())?);
            let base = memory.place(layout);
            // SAFETY: `stream_memory` made room for every connection, zeroed and 128-byte aligned; `memory` keeps it mapped as
            // long as the ends. The kernel is its only producer, the link its only consumer.
            let (mut conn, link) = unsafe {
                (
                    SendConn::new(Rank(peer), base.as_ptr(), layout),
                    StreamSend::new(stream, Rank(peer), base, layout),
                )
            };
            conn.is_streamed = true;
            groups[key.link_group()].send.push(link.map_err(broken)?);
            self.outbound_bytes[peer as usize] += layout.total_bytes();
            self.channel(key).send.push(conn);
        }
        for &(key, peer) in &from {
            let (layout, stream) =
                (self.layout(key), bootstrap.accept_stream(Rank(peer), PURPOSE, key.tag())?);
            let base = memory.place(layout);
            // SAFETY: as above, with the link as producer and the kernel as consumer, both run by one thread.
            let (conn, link) = unsafe {
                (
                    RecvConn::new(Rank(peer), base.as_ptr(), layout),
                    StreamRecv::new(stream, Rank(peer), base, layout),
                )
            };
            groups[key.link_group()].recv.push(link.map_err(broken)?);
            self.inbound_bytes[peer as usize] += layout.total_bytes();
            self.channel(key).recv.push(conn);
        }
        self.memory.push(memory.segment);
        self.links = Links::new(groups);
        Ok(())
    }

    /// Connects every rank that a network reaches, and puts a proxy behind the connections.
    pub fn open_networks(&mut self, bootstrap: &Bootstrap) -> Result<(), ConnectError> {
        let Wanted { rank, nranks, net, net_timeout: timeout, .. } = *self.wanted;
        let conns = |inbound| self.remote_conns(TransportKind::Net, inbound);
        let (to, from) = (conns(false), conns(true));
        let Some(mut memory) = self.stream_memory(&to, &from)? else { return Ok(()) };
        let (here, before) = (self.peers[rank as usize], &self.peers[..rank as usize]);
        let beside = before.iter().filter(|peer| (peer.host, peer.numa_node) == (here.host, here.numa_node));
        let place = Whereabouts { pci_path: None, numa_node: here.numa_node, turn: beside.count() as u32 };
        let refused = |peer, source| ConnectError::Net { rank, peer, source: Box::new(source) };
        let net = &find(net).map_err(|source| refused(None, source))?;
        // There is one: `find` gives no network without.
        let found = nearest(net.devices(), |device| net.properties(device), &place);
        let device = found.map_err(|source| refused(None, source))?;
        let peers = |conns: &[Conn]| conns.iter().map(|(_, peer)| *peer).collect::<Vec<u32>>();
        let (to_peers, from_peers) = (&peers(&to), &peers(&from));
        let dialing = Dialing { rank, bootstrap, net, device, to: to_peers, from: from_peers, timeout };
        let dialed = dialing.connect()?;
        let mut ends = Vec::new();
        for ((key, peer), comm) in to.into_iter().zip(dialed.to) {
            let (layout, place) = (self.layout(key), self.place_of(key, peer, true));
            let base = memory.place(layout);
            // SAFETY: as in `open_streams`, with the proxy's end for the link.
            let (mut conn, end) = unsafe {
                let block = ProxyBlock::in_host(base, layout);
                (SendConn::new(Rank(peer), base.as_ptr(), layout), SendEnd::new(comm, block, place))
            };
            conn.is_streamed = true;
            let end = end.map_err(|source| refused(Some(peer), source))?;
            ends.push(ProxyEnd::Send(end.keeping(memory.segment.clone())));
            self.outbound_bytes[peer as usize] += layout.total_bytes();
            self.channel(key).send.push(conn);
        }
        for ((key, peer), comm) in from.into_iter().zip(dialed.from) {
            let (layout, place) = (self.layout(key), self.place_of(key, peer, false));
            let base = memory.place(layout);
            // SAFETY: as above.
            let (conn, end) = unsafe {
                let block = ProxyBlock::in_host(base, layout);
                (RecvConn::new(Rank(peer), base.as_ptr(), layout), RecvEnd::new(comm, block, place))
            };
            let end = end.map_err(|source| refused(Some(peer), source))?;
            ends.push(ProxyEnd::Recv(end.keeping(memory.segment.clone())));
            self.inbound_bytes[peer as usize] += layout.total_bytes();
            self.channel(key).recv.push(conn);
        }
        self.memory.push(memory.segment);
        let channels = self.proxy_channels();
        let parts = ProxyParts { rank: Rank(rank), nranks, channels, ends, timeout: None };
        let reaches = (0..nranks).map(|peer| peer != rank && self.kind(rank, peer) == TransportKind::Net);
        self.net_links = Some(NetLinks::new(parts, reaches.collect()));
        Ok(())
    }

    /// A connection's name for the proxy, which numbers the mesh behind the channels.
    fn place_of(&self, key: ConnKey, peer: u32, is_send: bool) -> Place {
        let channel = match key {
            ConnKey::Channel(channel) => channel,
            ConnKey::Mesh => self.channels.len() as u32,
        };
        Place { peer: Rank(peer), channel: ChannelId(channel), is_send }
    }

    /// This rank's places in rings and trees, as the proxy wants them.
    fn proxy_channels(&self) -> Box<[ProxyChannel]> {
        let channel = |index: u32| {
            let mut channel = ProxyChannel::default();
            if index < self.graph.ring_channels() {
                channel.ring = self.graph.ring(index).iter().map(|rank| Rank(*rank)).collect();
            }
            if index < self.graph.tree_channels() {
                channel.tree = self.graph.tree(self.wanted.rank, index);
            }
            channel
        };
        // The mesh is neither.
        (0..self.graph.channels()).map(channel).chain([ProxyChannel::default()]).collect()
    }

    /// Connections to (or from) ranks that are reached so, by name and peer.
    fn remote_conns(&self, kind: TransportKind, inbound: bool) -> Vec<Conn> {
        let Wanted { rank, nranks, .. } = *self.wanted;
        let mut conns = Vec::new();
        for channel in 0..self.graph.channels() {
            let peers =
                if inbound { self.graph.sources(rank, channel) } else { self.graph.targets(rank, channel) };
            conns.extend(peers.into_iter().map(|peer| (ConnKey::Channel(channel), peer)));
        }
        conns.extend((0..nranks).map(|peer| (ConnKey::Mesh, peer)));
        conns.retain(|(_, peer)| *peer != rank && self.kind(rank, *peer) == kind);
        conns
    }

    /// Slots of a stream.
    fn layout(&self, key: ConnKey) -> ConnLayout {
        stream_layout(match key {
            ConnKey::Mesh => self.wanted.mesh_layout,
            ConnKey::Channel(_) => self.wanted.ring_layout,
        })
    }

    /// Memory for the local blocks of streams, if there are any.
    fn stream_memory(
        &self,
        to: &[(ConnKey, u32)],
        from: &[(ConnKey, u32)],
    ) -> Result<Option<StreamMemory>, ConnectError> {
        let bytes: usize = to.iter().chain(from).map(|(key, _)| self.layout(*key).total_bytes()).sum();
        if bytes == 0 {
            return Ok(None);
        }
        let segment = Segment::private(bytes).map_err(|error| self.memory_error(error))?;
        Ok(Some(StreamMemory { segment: Arc::new(segment), used_bytes: 0 }))
    }

    /// Names the connections that each algorithm uses.
    pub fn finish(mut self) -> Connected {
        let Wanted { rank, nranks, .. } = *self.wanted;
        let mut channels = std::mem::take(&mut self.channels);
        for (index, channel) in channels.iter_mut().enumerate() {
            self.place(channel, index as u32);
        }
        let send_to: Vec<u16> = (0..nranks).map(|peer| send_index(&self.mesh, peer)).collect();
        let recv_from: Vec<u16> = (0..nranks).map(|peer| recv_index(&self.mesh, peer)).collect();
        let others = (0..nranks).filter(|peer| *peer != rank);
        self.mesh.mesh_recv = others.map(|peer| recv_from[peer as usize]).collect();
        self.mesh.mesh_send = direct::peers(Rank(rank), nranks).map(|peer| send_to[peer.index()]).collect();
        self.mesh.chain = self.chain(&send_to, &recv_from);
        let kinds = (0..nranks).map(|peer| self.kind(rank, peer)).collect();
        Connected {
            channels,
            mesh: self.mesh,
            send_to,
            recv_from,
            links: self.links,
            net_links: self.net_links,
            reducing: self.reducing,
            kinds,
            peers: self.peers,
            graph: self.graph,
            inbound_bytes: self.inbound_bytes,
            outbound_bytes: self.outbound_bytes,
            memory: self.memory,
        }
    }

    /// Gives a channel its place in the ring and the tree.
    fn place(&self, channel: &mut Channel, index: u32) {
        let Wanted { rank, nranks, .. } = *self.wanted;
        if index < self.graph.ring_channels() {
            channel.ring_order = self.graph.ring(index).to_vec();
            channel.ring_position = self.graph.position(index, rank);
            channel.ring_recv = recv_index(channel, self.graph.along_ring(index, rank, nranks - 1));
            channel.ring_send = send_index(channel, self.graph.along_ring(index, rank, 1));
        }
        if index < self.graph.tree_channels() {
            let links = self.graph.tree(rank, index);
            let mut tree = TreeEnds { links, ..TreeEnds::default() };
            for child in links.down.iter().flatten() {
                tree.child_recv[tree.children] = recv_index(channel, child.0);
                tree.child_send[tree.children] = send_index(channel, child.0);
                tree.children += 1;
            }
            if let Some(parent) = links.up {
                tree.parent_recv = [recv_index(channel, parent.0)];
                tree.parent_send = [send_index(channel, parent.0)];
            }
            channel.tree = tree;
        }
    }
}

/// The connection to `peer`; 0 where there is none, which is never used then.
fn send_index(channel: &Channel, peer: u32) -> u16 {
    channel.send.iter().position(|conn| conn.peer().0 == peer).unwrap_or(0) as u16
}

/// The connection from `peer`; 0 where there is none, which is never used then.
fn recv_index(channel: &Channel, peer: u32) -> u16 {
    channel.recv.iter().position(|conn| conn.peer().0 == peer).unwrap_or(0) as u16
}
