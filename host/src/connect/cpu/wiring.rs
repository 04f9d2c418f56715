//! The connections of one rank as they come into being.

pub(super) mod halves;

use super::connected::{CpuConnected, Reducing};
use super::graph::RankGraph;
use super::inbox::{ConnKey, Inbox, MeshMemory};
use super::places;
use super::wanted::CpuWanted;
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::connect::pipeline::Ranks;
use crate::connect::vote::{vote, vote_or_abort};
use crate::launch::{Channel, NetLinks};
use crate::mem::{self, MemError, Segment, ShmFile};
use crate::net::Locality;
use crate::transport::{
    Asked, Asking, InboxName, Memory, OpenBy, Opener, PeerInfo, Probe, ProcessMemory, TRANSPORTS, Transport,
    TransportKind, Wires, processors_each, transport_of,
};
use oxccl_device::conn::{Outboxes, RecvConn, SendConn, outbox_bytes, share_buffers};
use oxccl_shared::abi::{ConnLayout, Rank};
use oxccl_shared::algo::collnet::Shape;
use std::collections::HashMap;
use std::sync::Arc;

/// From so many readers on an outbox is faster: 16 ranks gather 512 KiB in 0.6 of the time, 8 in 0.7 to 1.1, 4 in the same
/// (docs/measurements/2026-11-29-cpu-odd-lengths.md).
const OUTBOX_READERS_MIN: usize = 7;

/// A connection's name and the rank at its other end.
pub(super) type Conn = (ConnKey, Rank);

pub(crate) struct Wiring<'a> {
    pub(super) wanted: &'a CpuWanted<'a>,
    pub(super) graph: RankGraph,
    pub(super) peers: Vec<PeerInfo>,
    /// By which ranks of this host find out whether they can read each other's memory.
    probes: Vec<Option<Probe>>,
    channels: Vec<Channel>,
    pub(super) mesh: Channel,
    net_links: Option<NetLinks>,
    /// How connections over a network are made later.
    opener: Option<(&'static dyn Transport, Box<dyn Opener>)>,
    pub(super) reducing: Reducing,
    pub(super) memory: Vec<Arc<Segment>>,
    /// Outboxes in it, by rank.
    outboxes: HashMap<Rank, *mut u8>,
    /// Others can open this rank's inbox as long as it has a name.
    file: Option<ShmFile>,
    inbound_bytes: Vec<usize>,
    outbound_bytes: Vec<usize>,
}

impl<'a> Wiring<'a> {
    pub fn new(wanted: &'a CpuWanted<'a>, graph: RankGraph, ranks: Ranks<Option<Probe>>) -> Self {
        let channels = (0..graph.channels()).map(|_| Channel::default()).collect();
        let nranks = wanted.nranks as usize;
        Wiring {
            wanted,
            graph,
            peers: ranks.peers,
            probes: ranks.units,
            channels,
            mesh: Channel::default(),
            net_links: None,
            opener: None,
            reducing: Reducing::default(),
            memory: Vec::new(),
            outboxes: HashMap::new(),
            file: None,
            inbound_bytes: vec![0; nranks],
            outbound_bytes: vec![0; nranks],
        }
    }

    /// How two ranks are connected; the same seen from either.
    pub(super) fn kind(&self, a: Rank, b: Rank) -> TransportKind {
        let chosen = self.wanted.allowed.choose(&self.peers[a.index()], &self.peers[b.index()]);
        chosen.unwrap_or(TransportKind::InProcess)
    }

    /// The transports by which this rank reaches others.
    fn in_use(&self) -> impl Iterator<Item = &'static dyn Transport> {
        let CpuWanted { rank, nranks, .. } = *self.wanted;
        let reaches =
            move |kind| (0..nranks).map(Rank).any(|peer| peer != rank && self.kind(rank, peer) == kind);
        TRANSPORTS.into_iter().filter(move |transport| reaches(transport.kind()))
    }

    fn is_local(&self, a: Rank, b: Rank) -> bool {
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

    fn inbox_name(&self, rank: Rank) -> InboxName {
        self.wanted.inbox_name(&self.peers, rank)
    }

    /// Where the connections of `rank`'s local producers lie.
    fn local_inbox(&self, rank: Rank) -> Inbox {
        let CpuWanted { nranks, ring_layout, mesh_layout: layout, mesh_buffer_bytes: buffer_bytes, .. } =
            *self.wanted;
        let mesh = MeshMemory { layout, buffer_bytes, has_outbox: self.has_outbox(rank) };
        Inbox::new(&self.graph, nranks, rank, ring_layout, mesh, |from| self.is_local(rank, from))
    }

    /// Whether a rank of this host stores what goes to several others once, in an outbox. Fewer ranks are faster by buffers that change hands, and so
    /// are those that share processors: what they fill they have read last, and an outbox's lines are in all other caches then.
    fn has_outbox(&self, rank: Rank) -> bool {
        let readers = (0..self.wanted.nranks).filter(|peer| self.is_local(rank, Rank(*peer))).count();
        let is_faster = readers >= OUTBOX_READERS_MIN && !self.is_crowded();
        readers > 1 && self.wanted.outbox.unwrap_or(is_faster)
    }

    /// Makes the inbox that local peers write into, and our ends of it.
    pub fn make_memory(&mut self) -> Result<(), ConnectError> {
        let rank = self.wanted.rank;
        let inbox = self.local_inbox(rank);
        if inbox.entries.is_empty() {
            return Ok(());
        }
        let needs = self.in_use().map(|transport| transport.memory()).max();
        let (segment, file) = if needs == Some(Memory::File) {
            // One rank of a host does it for all: every rank has a file, which each would try.
            if (0..rank.0)
                .map(Rank)
                .all(|before| self.peers[before.index()].host != self.peers[rank.index()].host)
            {
                mem::sweep_stale();
            }
            let made = Segment::shm_create(&self.inbox_name(rank).file(), inbox.len_bytes);
            let (segment, file) = made.map_err(|error| self.memory_error(error))?;
            (segment, Some(file))
        } else {
            let made = Segment::private(inbox.len_bytes);
            (made.map_err(|error| self.memory_error(error))?, None)
        };
        let segment = Arc::new(segment);
        for transport in self.in_use() {
            let shown = transport.show(self.inbox_name(rank), &segment);
            shown.map_err(|error| self.memory_error(error))?;
        }
        for entry in &inbox.entries {
            let base = segment.base().wrapping_add(entry.offset);
            // SAFETY: the inbox laid the entry out within the segment, 128-byte aligned and zeroed; `memory` keeps it mapped
            // as long as its ends; this rank is the only consumer of its inbox.
            let mut conn = unsafe { RecvConn::new(entry.from, base, entry.layout) };
            conn.spread();
            self.read_messages(entry.key, &mut conn);
            self.inbound_bytes[entry.from.index()] += entry.len_bytes();
            self.channel(entry.key).recv.push(conn);
        }
        self.keep(rank, &inbox, segment);
        self.file = file;
        Ok(())
    }

    /// Keeps the inbox of a rank mapped.
    fn keep(&mut self, rank: Rank, inbox: &Inbox, segment: Arc<Segment>) {
        self.outboxes.extend(inbox.outbox.map(|at| (rank, segment.base().wrapping_add(at))));
        self.memory.push(segment);
    }

    /// From which length on messages within the host are read from the sender's memory.
    fn read_from_bytes(&self) -> Option<usize> {
        self.wanted.read_from_bytes.map(|[apart, crowded]| if self.is_crowded() { crowded } else { apart })
    }

    /// Whether the ranks of this host are more than its processors.
    fn is_crowded(&self) -> bool {
        let host = self.peers[self.wanted.rank.index()].host;
        processors_each(&self.peers, host) == 0
    }

    /// Has long messages of a connection read from the sender's memory, if its process lets us.
    fn read_messages(&self, key: ConnKey, conn: &mut RecvConn) {
        let from = conn.peer().index();
        let (ConnKey::Mesh, Some(from_bytes), Some(probe)) = (key, self.read_from_bytes(), self.probes[from])
        else {
            return;
        };
        if let Some(memory) = ProcessMemory::attach(self.peers[from].pid, probe) {
            conn.read_from(Arc::new(memory), from_bytes);
        }
    }

    /// Maps the inboxes of local peers, and our ends of them.
    pub fn open_peers(&mut self) -> Result<(), ConnectError> {
        let CpuWanted { rank, nranks, .. } = *self.wanted;
        for peer in (0..nranks).map(Rank).filter(|peer| *peer != rank) {
            let Some(transport) = transport_of(self.kind(rank, peer)) else { continue };
            if transport.memory() == Memory::Halves {
                continue;
            }
            let inbox = self.local_inbox(peer);
            let opened = transport.open(self.inbox_name(peer), inbox.len_bytes);
            let opened = opened.map_err(|error| ConnectError::of_transport(rank, error))?;
            let Some(segment) = opened else { continue };
            for entry in inbox.entries.iter().filter(|entry| entry.from == rank) {
                let base = segment.base().wrapping_add(entry.offset);
                // SAFETY: as in `make_memory`, seen from the producer: the layout was computed alike, the segment's length
                // checked, and this rank is the entry's only producer.
                let mut conn = unsafe { SendConn::new(peer, base, entry.layout) };
                conn.spread();
                if let (ConnKey::Mesh, Some(from_bytes)) = (entry.key, self.read_from_bytes()) {
                    conn.offer_from(from_bytes);
                }
                self.channel(entry.key).send.push(conn);
            }
            self.keep(peer, &inbox, segment);
        }
        Ok(())
    }

    /// Connects the ranks that share no memory.
    pub fn connect_remote(&mut self, bootstrap: &Bootstrap) -> Result<(), ConnectError> {
        let connected =
            TRANSPORTS.into_iter().try_for_each(|transport| self.connect_by(transport, bootstrap));
        let connected = connected.and_then(|()| self.opener(bootstrap));
        vote_or_abort(bootstrap, connected)?;
        if self.wants_collnet() {
            let listener = vote(bootstrap, self.listen_collnet())?;
            let joined = self.join_collnet(bootstrap, listener);
            vote_or_abort(bootstrap, joined)?;
        }
        Ok(())
    }

    /// Connects the halves of all connections that go by this transport.
    fn connect_by(
        &mut self,
        transport: &'static dyn Transport,
        bootstrap: &Bootstrap,
    ) -> Result<(), ConnectError> {
        let CpuWanted { rank, net, net_timeout: timeout, .. } = *self.wanted;
        let conns = |inbound| self.remote_conns(transport.kind(), inbound);
        let (to, from) = (conns(false), conns(true));
        let Some(mut halves) = self.halves(transport, &to, &from)? else { return Ok(()) };
        let asking = |conns: &[Conn]| -> Vec<Asking> {
            conns.iter().map(|(key, peer)| Asking { tag: key.tag(), peer: *peer }).collect()
        };
        let (to_asked, from_asked) = (&asking(&to)[..], &asking(&from)[..]);
        let place = self.place_of_rank();
        let asked = Asked { bootstrap, to: to_asked, from: from_asked, net, place, timeout };
        let wires = transport.connect(&asked).map_err(|error| ConnectError::of_transport(rank, error))?;
        match wires {
            Wires::None => {}
            Wires::Comms { to: to_comms, from: from_comms } => {
                let to = to.into_iter().zip(to_comms).collect();
                self.attach_network(transport, &mut halves, to, from.into_iter().zip(from_comms).collect())?;
            }
        }
        self.memory.push(halves.segment);
        Ok(())
    }

    /// Where this rank is, seen from devices.
    fn place_of_rank(&self) -> Locality {
        let rank = self.wanted.rank.index();
        let (here, before) = (self.peers[rank], &self.peers[..rank]);
        let beside = before.iter().filter(|peer| (peer.host, peer.numa_node) == (here.host, here.numa_node));
        Locality { pci_path: None, numa_node: here.numa_node, turn: beside.count() as u32 }
    }

    /// Connections to (or from) ranks that are reached so, by name and peer.
    fn remote_conns(&self, kind: TransportKind, inbound: bool) -> Vec<Conn> {
        let CpuWanted { rank, nranks, .. } = *self.wanted;
        let mut conns = Vec::new();
        for channel in 0..self.graph.channels() {
            let peers =
                if inbound { self.graph.sources(rank, channel) } else { self.graph.targets(rank, channel) };
            conns.extend(peers.into_iter().map(|peer| (ConnKey::Channel(channel), peer)));
        }
        conns.extend((0..nranks).map(Rank).map(|peer| (ConnKey::Mesh, peer)));
        if self.wanted.by_need {
            conns.retain(|conn| self.is_made_at_init(*conn, inbound));
        }
        conns.retain(|(_, peer)| *peer != rank && self.kind(rank, *peer) == kind);
        conns
    }

    /// Whether a connection is there from init on: along a ring, which shows that the network works, or inside a host on the way to a network
    /// that reduces, where one may be used.
    fn is_made_at_init(&self, (key, peer): Conn, inbound: bool) -> bool {
        let CpuWanted { rank, nranks, .. } = *self.wanted;
        let steps = if inbound { nranks - 1 } else { 1 };
        let ConnKey::Channel(channel) = key else {
            let is_beside = |shape: Shape| {
                let place = shape.place(self.own_host(), rank).unwrap_or_default();
                place.above == Some(peer) || place.below.contains(&peer)
            };
            return self.wanted.net.coll.enabled && (is_beside(Shape::Chain) || is_beside(Shape::Star));
        };
        channel < self.graph.ring_channels() && self.graph.along_ring(channel, rank, steps) == peer
    }

    /// Slots of a connection by this transport.
    fn layout(&self, transport: &dyn Transport, key: ConnKey) -> ConnLayout {
        layout(self.wanted, transport, key)
    }

    /// What makes connections over a network when operations need them, if this rank may need any.
    pub fn opener(&mut self, bootstrap: &Bootstrap) -> Result<(), ConnectError> {
        let CpuWanted { rank, net, by_need, .. } = *self.wanted;
        let far = self.in_use().find(|transport| transport.kind().is_remote());
        let Some(transport) = far.filter(|_| by_need) else { return Ok(()) };
        let by = OpenBy { reach: bootstrap.reach(), net, place: self.place_of_rank() };
        let opener = transport.opener(by).map_err(|error| ConnectError::of_transport(rank, error))?;
        self.opener = opener.map(|opener| (transport, opener));
        if self.net_links.is_none() {
            self.link_network(transport, Vec::new());
        }
        Ok(())
    }

    /// Names the connections that each algorithm uses.
    pub fn finish(mut self) -> CpuConnected {
        let CpuWanted { rank, nranks, .. } = *self.wanted;
        self.share_buffers();
        let outbox = self.outboxes.get(&rank);
        let mut channels = std::mem::take(&mut self.channels);
        for (index, channel) in channels.iter_mut().enumerate() {
            places::place(channel, &self.graph, rank, index as u32);
        }
        let (send_to, recv_from) = places::place_mesh(&mut self.mesh, (rank, nranks), self.reducing.places());
        self.mesh.chain = self.host_places(Shape::Chain, &send_to, &recv_from);
        self.mesh.star = self.host_places(Shape::Star, &send_to, &recv_from);
        let kinds = (0..nranks).map(Rank).map(|peer| self.kind(rank, peer)).collect();
        CpuConnected {
            channels,
            mesh: self.mesh,
            send_to,
            recv_from,
            net_links: self.net_links,
            opener: self.opener,
            reducing: self.reducing,
            kinds,
            peers: self.peers,
            graph: self.graph,
            inbound_bytes: self.inbound_bytes,
            outbound_bytes: self.outbound_bytes,
            outbox_bytes: outbox
                .map_or(0, |_| outbox_bytes(self.wanted.mesh_layout.simple_slot_bytes as usize)),
            memory: self.memory,
        }
    }

    /// Gives the buffers that two ranks hand to and fro to connections that go both ways between them, in memory that both share.
    fn share_buffers(&mut self) {
        let CpuWanted { rank, ring_layout, mesh_layout, mesh_buffer_bytes, ping_pong, .. } = *self.wanted;
        let at = |rank: Rank| self.outboxes.get(&rank).copied();
        let outboxes_with = |peer: Rank| {
            let len_bytes = mesh_layout.simple_slot_bytes as usize;
            Some(Outboxes { own: at(rank)?, theirs: at(peer)?, len_bytes })
        };
        let ring_bytes = ring_layout.simple_slot_bytes as usize;
        let rings = self.channels.iter_mut().map(|ring| (ring, ring_bytes, false));
        for (channel, len_bytes, is_mesh) in rings.chain([(&mut self.mesh, mesh_buffer_bytes, true)]) {
            let recvs = channel.recv.iter_mut().filter(|conn| conn.is_spread());
            let mut recvs: HashMap<Rank, &mut RecvConn> = recvs.map(|conn| (conn.peer(), conn)).collect();
            for send in channel.send.iter_mut().filter(|conn| conn.is_spread()) {
                if let Some(recv) = recvs.get_mut(&send.peer()) {
                    let outboxes = is_mesh.then(|| outboxes_with(send.peer())).flatten();
                    // SAFETY: (1) both lie in inboxes, whose entries have room for the buffers (`InboxEntry::buffer_bytes`); (2) so do the
                    // outboxes (`Inbox::outbox`), and all connections of the mesh that share memory get this rank's.
                    unsafe { share_buffers(send, recv, len_bytes, ping_pong, outboxes) };
                }
            }
        }
    }
}

/// Slots of a connection by this transport.
pub(super) fn layout(wanted: &CpuWanted<'_>, transport: &dyn Transport, key: ConnKey) -> ConnLayout {
    transport.layout(match key {
        ConnKey::Mesh => wanted.mesh_layout,
        ConnKey::Channel(_) => wanted.ring_layout,
    })
}
