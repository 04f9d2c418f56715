//! The placement of GPU connections: in each rank's GPU memory, or for pairs that use host memory in its memory
//! there. Connections over a network are in neither (see `net`).
//!
//! ```text
//! rings   C x control        producer's side of the connection to the next rank: the word that the next rank writes
//! mesh    M x (n - 1)        the same, to every other rank
//! trees   K x control        the same, to each neighbour: channel by channel, children in order, then the parent
//! chains  control            the same, to each neighbour: the rank below, then the rank above
//! stars   control            the same, to each neighbour: the ranks below, then the rank above
//! rings   C x block          the connection from the rank before: control and slots
//! mesh    M x (n - 1)        the same, from every other rank
//! trees   K x block          the same, from each neighbour
//! chains  block              the same, from each neighbour
//! stars   block              the same, from each neighbour
//! ```
//! Each of the two memories has, in this order, the parts that it is used for. So a rank has exactly as much of each
//! as its pairs need.
//!
//! The layout of one [`Part`] is that of its connections alone, in the same order.

use super::heads::{DeviceHeads, InHosts};
use super::part::{FIRST, FIRST_OF_HOSTS, Part};
use super::routes::Routes;
use super::trees::DeviceTrees;
use crate::machine::{ConnKind, Need};
use crate::transport::p2p::{Domain, Domains};
use oxccl_shared::abi::{ConnControl, ConnLayout, Rank};
use oxccl_shared::algo::collnet::Shape;
use oxccl_shared::algo::tree::TreeLinks;
use std::ops::Range;

/// The layout of a communicator; equal on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceLayout {
    /// Number of ranks.
    pub nranks: u32,
    /// The rank at each position, for each ring.
    pub rings: Vec<Vec<Rank>>,
    /// Channels of connections between all pairs, of those for collectives and of those for messages.
    pub mesh_channels: u32,
    /// Of these, those of pairs that only a network connects.
    pub far_channels: u32,
    /// Slots of rings.
    pub ring: ConnLayout,
    /// Slots between pairs.
    pub mesh: ConnLayout,
    /// The part whose layout it is; of all connections, if none.
    pub part: Option<Part>,
    /// Trees, on channels of their own.
    pub trees: DeviceTrees,
    /// Chains to a network that reduces, on channels of their own.
    pub chains: DeviceHeads,
    /// Stars to a network that reduces, on channels of their own.
    pub stars: DeviceHeads,
    /// Which pairs share memory, and which use a network.
    pub routes: Routes,
    /// The memory domain of each pair.
    pub domains: Domains,
}

/// Identifies one of a rank's connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ConnName {
    /// Its purpose.
    pub kind: ConnKind,
    /// Channel of that kind.
    pub channel: usize,
    /// The rank at the other end.
    pub peer: Rank,
    /// Whether this rank sends.
    pub is_send: bool,
}

/// A range of a rank's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The memory domain.
    pub domain: Domain,
    /// The bytes.
    pub bytes: Range<usize>,
}

const CONTROL_BYTES: usize = size_of::<ConnControl>();

impl DeviceLayout {
    /// The layout of these rings, without trees.
    pub fn new(
        nranks: u32,
        rings: Vec<Vec<Rank>>,
        mesh_channels: u32,
        ring: ConnLayout,
        mesh: ConnLayout,
    ) -> DeviceLayout {
        let trees = DeviceTrees { trees: Vec::new(), slots: ring };
        let [chains, stars] = [Shape::Chain, Shape::Star].map(|shape| DeviceHeads::none(shape, ring));
        let (routes, domains) = (Routes::default(), Domains::default());
        let (part, far_channels) = (None, mesh_channels);
        DeviceLayout {
            nranks,
            rings,
            mesh_channels,
            far_channels,
            ring,
            mesh,
            part,
            trees,
            chains,
            stars,
            routes,
            domains,
        }
    }

    /// The same with these chains and stars, whose slots are those of rings.
    pub fn with_heads(self, InHosts { chains, stars }: InHosts) -> DeviceLayout {
        let chains = DeviceHeads { channels: chains, ..self.chains };
        let stars = DeviceHeads { channels: stars, ..self.stars };
        DeviceLayout { chains, stars, ..self }
    }

    /// Whether some ranks meet over a network.
    pub fn is_wide(&self) -> bool {
        self.routes.is_wide()
    }

    /// The part that is made at init.
    pub fn first(&self) -> Part {
        if self.is_wide() { FIRST_OF_HOSTS } else { FIRST }
    }

    /// The parts that a rank needs for a launch.
    pub fn parts_of(&self, need: &Need, rank: Rank) -> impl Iterator<Item = Part> + use<> {
        Part::of_need(need, rank, self.channels(need.kind), self.is_wide())
    }

    /// Whether a part is one of these connections.
    pub fn has_part(&self, part: Part) -> bool {
        part.is_sound(self.nranks)
            && part.protocol.is_none() == self.is_wide()
            && !part.channels(self.channels(part.kind)).is_empty()
    }

    /// The layout of a part.
    pub fn of_part(&self, part: Part) -> DeviceLayout {
        DeviceLayout { part: Some(part), ..self.clone() }
    }

    /// The same with these trees, each of them every rank's links.
    pub fn with_trees(mut self, trees: Vec<Vec<TreeLinks>>, slots: ConnLayout) -> DeviceLayout {
        self.trees = DeviceTrees { trees, slots };
        self
    }

    /// The same with these routes between ranks, and so many channels of the mesh between those that only a network connects.
    pub fn with_routes(self, routes: Routes, far_channels: u32) -> DeviceLayout {
        let far_channels = far_channels.min(self.mesh_channels);
        DeviceLayout { routes, far_channels, ..self }
    }

    /// The same with these memory domains.
    pub fn with_domains(self, domains: Domains) -> DeviceLayout {
        DeviceLayout { domains, ..self }
    }

    /// Position of a rank in a ring.
    pub fn position(&self, channel: usize, rank: Rank) -> usize {
        self.rings[channel].iter().position(|at| *at == rank).expect("a ring has every rank")
    }

    /// The rank `steps` positions after `rank`.
    pub fn along_ring(&self, channel: usize, rank: Rank, steps: usize) -> Rank {
        let ring = &self.rings[channel];
        ring[(self.position(channel, rank) + steps) % ring.len()]
    }

    /// Slots of connections of a kind.
    pub fn slots(&self, kind: ConnKind) -> ConnLayout {
        let all = match kind {
            ConnKind::Ring => self.ring,
            ConnKind::Mesh | ConnKind::Pair => self.mesh,
            ConnKind::Tree => self.trees.slots,
            ConnKind::Chain => self.chains.slots,
            ConnKind::Star => self.stars.slots,
        };
        self.part.map_or(all, |part| part.slots(all))
    }

    /// The channels of a kind on which heads have a network that reduces.
    pub fn heads(&self, kind: ConnKind) -> Option<&DeviceHeads> {
        match kind {
            ConnKind::Chain => Some(&self.chains),
            ConnKind::Star => Some(&self.stars),
            _ => None,
        }
    }

    /// Channels of a kind.
    pub fn channels(&self, kind: ConnKind) -> usize {
        match kind {
            ConnKind::Ring => self.rings.len(),
            ConnKind::Mesh | ConnKind::Pair => self.mesh_channels as usize,
            ConnKind::Tree => self.trees.channels(),
            ConnKind::Chain => self.chains.channels(),
            ConnKind::Star => self.stars.channels(),
        }
    }

    /// Of a rank's connections of a kind in one direction, how many each channel has room for.
    pub fn conns_each(&self, kind: ConnKind, rank: Rank) -> usize {
        match kind {
            ConnKind::Ring => 1,
            ConnKind::Mesh | ConnKind::Pair => self.nranks as usize - 1,
            ConnKind::Tree => self.trees.neighbours_max(rank),
            ConnKind::Chain => self.chains.conns_max(rank),
            ConnKind::Star => self.stars.conns_max(rank),
        }
    }

    /// The place of one of a rank's connections among all of its kind and direction.
    pub fn index_of(&self, rank: Rank, name: ConnName) -> usize {
        let ConnName { kind, channel, peer, .. } = name;
        let at = match kind {
            ConnKind::Ring => 0,
            ConnKind::Mesh | ConnKind::Pair => peer.index() - usize::from(peer > rank),
            ConnKind::Tree => {
                let at = self.trees.neighbours(channel, rank).position(|neighbour| neighbour == peer);
                at.expect("a tree's connections are to neighbours")
            }
            ConnKind::Chain => self.chains.index_of(channel, rank, peer),
            ConnKind::Star => self.stars.index_of(channel, rank, peer),
        };
        channel * self.conns_each(kind, rank) + at
    }

    /// All connections of `rank` with other ranks, in the order of its memory: first those on which it sends, then those on which it
    /// receives.
    pub fn conns(&self, rank: Rank) -> impl Iterator<Item = ConnName> + '_ {
        [true, false].into_iter().flat_map(move |is_send| self.conns_one_way(rank, is_send))
    }

    fn conns_one_way(&self, rank: Rank, is_send: bool) -> impl Iterator<Item = ConnName> + '_ {
        use ConnKind::{Chain, Mesh, Pair, Ring, Star, Tree};
        let kinds = [Ring, Mesh, Pair, Tree, Chain, Star];
        let kinds = kinds.into_iter().filter(move |kind| self.part.is_none_or(|part| part.kind == *kind));
        kinds.flat_map(move |kind| self.conns_of_kind(kind, rank, is_send))
    }

    fn conns_of_kind(
        &self,
        kind: ConnKind,
        rank: Rank,
        is_send: bool,
    ) -> impl Iterator<Item = ConnName> + '_ {
        let of = self.channels(kind);
        let channels = self.part.map_or(0..of, |part| part.channels(of));
        channels.flat_map(move |channel| {
            let peers = self.peers_on(kind, channel, rank, is_send).into_iter();
            peers.map(move |peer| ConnName { kind, channel, peer, is_send })
        })
    }

    /// The ranks to which, or from which, a rank has a connection on a channel.
    fn peers_on(&self, kind: ConnKind, channel: usize, rank: Rank, is_send: bool) -> Vec<Rank> {
        let has = |peer: &Rank| self.part.is_none_or(|part| part.has(rank) && part.has(*peer));
        let peers: Vec<Rank> = match kind {
            ConnKind::Ring => {
                let steps = if is_send { 1 } else { self.nranks as usize - 1 };
                vec![self.along_ring(channel, rank, steps)]
            }
            ConnKind::Mesh | ConnKind::Pair => {
                let has_channel = |peer: &Rank| self.has_mesh(channel, rank, *peer);
                (0..self.nranks).map(Rank).filter(|peer| *peer != rank).filter(has_channel).collect()
            }
            ConnKind::Tree => self.trees.neighbours(channel, rank).collect(),
            ConnKind::Chain => self.chains.neighbours(channel, rank).collect(),
            ConnKind::Star => self.stars.neighbours(channel, rank).collect(),
        };
        peers.into_iter().filter(has).collect()
    }

    /// Whether a pair has a channel of the mesh.
    pub fn has_mesh(&self, channel: usize, rank: Rank, peer: Rank) -> bool {
        channel < self.far_channels as usize || !self.routes.is_net(rank, peer)
    }

    /// Bytes of a connection in a rank's memory: the producer's side, or the consumer's with its slots.
    fn part_bytes(&self, name: ConnName) -> usize {
        if name.is_send { CONTROL_BYTES } else { self.slots(name.kind).total_bytes() }
    }

    /// The connections in memory.
    pub fn conns_in_memory(&self, rank: Rank) -> impl Iterator<Item = ConnName> + '_ {
        self.conns(rank).filter(move |name| !self.routes.is_net(rank, name.peer))
    }

    /// The place of `rank`'s side of one of its connections in memory.
    pub fn place(&self, rank: Rank, name: ConnName) -> MemoryRange {
        let domain = self.domains.of(rank, name.peer);
        let before = self.conns_in_memory(rank).take_while(|other| *other != name);
        let before = before.filter(|other| self.domains.of(rank, other.peer) == domain);
        let start = before.map(|other| self.part_bytes(other)).sum();
        MemoryRange { domain, bytes: start..start + self.part_bytes(name) }
    }

    /// Both sides of a connection of `rank`, given the base addresses of a rank's memories: the producer's, the
    /// consumer's.
    pub fn in_memory(&self, rank: Rank, name: ConnName, base: &dyn Fn(Rank, Domain) -> u64) -> [u64; 2] {
        let (from, to) = if name.is_send { (rank, name.peer) } else { (name.peer, rank) };
        let at = |rank: Rank, peer: Rank, is_send: bool| {
            let MemoryRange { domain, bytes } = self.place(rank, ConnName { peer, is_send, ..name });
            base(rank, domain) + bytes.start as u64
        };
        [at(from, to, true), at(to, from, false)]
    }

    /// Bytes of a rank's memories, in the order of [`Domain::ALL`]; none for a rank that is alone.
    pub fn len_bytes(&self, rank: Rank) -> [usize; 2] {
        let mut bytes = [0; 2];
        if self.nranks > 1 {
            self.conns_in_memory(rank)
                .for_each(|name| bytes[self.domains.of(rank, name.peer) as usize] += self.part_bytes(name));
        }
        bytes
    }

    /// Bytes of a rank's memory that its connections from `peer` take.
    pub fn inbound_bytes(&self, rank: Rank, peer: Rank) -> usize {
        self.shared_bytes(rank, peer, false)
    }

    /// Bytes of a rank's memory that its connections to `peer` take.
    pub fn outbound_bytes(&self, rank: Rank, peer: Rank) -> usize {
        self.shared_bytes(rank, peer, true)
    }

    fn shared_bytes(&self, rank: Rank, peer: Rank, is_send: bool) -> usize {
        let shared = self.conns_one_way(rank, is_send).filter(|name| name.peer == peer);
        shared.map(|name| self.part_bytes(name)).sum()
    }

    /// Whether any connection of a kind uses host memory.
    pub fn is_through_host(&self, kind: ConnKind) -> bool {
        let has = |(rank, peer): &(Rank, Rank)| {
            self.conns(*rank).any(|name| name.kind == kind && name.peer == *peer)
        };
        self.domains.on_host().iter().any(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::gpu::routes::RouteSettings;
    use crate::topology::Channels;
    use crate::transport::PeerInfo;
    use proptest::prelude::*;

    const SLOTS: ConnLayout =
        ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };

    fn layout(nranks: u32, rings: u32, mesh: u32, trees: u32) -> DeviceLayout {
        let small = |simple_slot_bytes| ConnLayout { simple_slot_bytes, ..SLOTS };
        let channels = Channels::in_rank_order(nranks);
        let trees = (0..trees).map(|channel| channels.tree(channel as usize).to_vec()).collect();
        let ring = |channel| {
            let ring = (0..nranks).map(Rank);
            if channel % 2 == 1 { ring.rev().collect() } else { ring.collect() }
        };
        let rings = (0..rings).map(ring).collect();
        DeviceLayout::new(nranks, rings, mesh, SLOTS, small(384)).with_trees(trees, small(640))
    }

    /// Pairs of ranks by a bit each of `bits`.
    fn some_pairs(nranks: u32, bits: u64) -> Domains {
        let pairs = (0..nranks).map(Rank).flat_map(|a| (a.0 + 1..nranks).map(move |b| (a, Rank(b))));
        Domains::new(pairs.enumerate().filter(|(i, _)| bits >> (i % 64) & 1 == 1).map(|(_, pair)| pair))
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_everything_is_used(
            nranks in 2u32..10,
            rings in 1u32..6,
            mesh in 1u32..5,
            far in 1u32..5,
            trees in 0u32..6,
            bits in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
            hosts in prop_oneof![Just(0), any::<u64>()],
        ) {
            let host = |rank: Rank| PeerInfo { host: hosts >> (2 * rank.0) & 3, ..PeerInfo::default() };
            let settings = RouteSettings { memory: true, network: true };
            let routes = Routes::new(&(0..nranks).map(Rank).map(host).collect::<Vec<_>>(), settings);
            let layout = layout(nranks, rings, mesh, trees).with_domains(some_pairs(nranks, bits));
            let layout = layout.with_routes(routes, far);
            let is_near = |rank: Rank, peer: Rank| rank != peer && !layout.routes.is_net(rank, peer);
            for rank in (0..nranks).map(Rank) {
                let mut ends = [0; 2];
                for name in layout.conns(rank).filter(|name| is_near(rank, name.peer)) {
                    let MemoryRange { domain, bytes } = layout.place(rank, name);
                    prop_assert_eq!(domain, layout.domains.of(rank, name.peer));
                    prop_assert_eq!(bytes.start, ends[domain as usize], "{:?}", name);
                    prop_assert!(bytes.start.is_multiple_of(128) && !bytes.is_empty());
                    ends[domain as usize] = bytes.end;
                }
                prop_assert_eq!(ends, layout.len_bytes(rank));
                let peers = (0..nranks).map(Rank).filter(|peer| is_near(rank, *peer));
                let bytes: usize = peers
                    .map(|peer| layout.inbound_bytes(rank, peer) + layout.outbound_bytes(rank, peer))
                    .sum();
                prop_assert_eq!(bytes, ends[0] + ends[1]);
            }
            for kind in [ConnKind::Ring, ConnKind::Mesh, ConnKind::Tree] {
                let has = |rank: Rank| layout.conns(rank).any(|name| {
                    name.kind == kind && layout.domains.of(rank, name.peer) == Domain::Host
                });
                prop_assert_eq!(layout.is_through_host(kind), (0..nranks).map(Rank).any(has));
            }
        }

        #[test]
        fn the_rank_after_has_us_before_it(nranks in 2u32..10, rings in 1u32..6) {
            let layout = layout(nranks, rings, 1, 0);
            for (channel, rank) in (0..rings as usize).flat_map(|c| (0..nranks).map(Rank).map(move |r| (c, r))) {
                let next = layout.along_ring(channel, rank, 1);
                prop_assert_eq!(layout.along_ring(channel, next, nranks as usize - 1), rank);
            }
        }
    }

    #[test]
    fn a_rank_alone_needs_nothing() {
        assert_eq!(layout(1, 2, 2, 2).len_bytes(Rank(0)), [0, 0]);
    }
}
