//! Where the connections of GPUs lie: in one piece of memory per rank, laid out alike on all but for the trees.
//!
//! ```text
//! rings   C x control    producer's side of the connection to the next rank: the word that the next rank writes
//! mesh    M x (n - 1)    the same, to every other rank
//! rings   C x block      the connection from the rank before: control and slots
//! mesh    M x (n - 1)    the same, from every other rank
//! trees                  this rank's share, see `trees`; of a length of its own, so it comes last
//! ```

use super::trees::DeviceTrees;
use oxccl_shared::abi::{ConnControl, ConnLayout};
use oxccl_shared::algo::tree::TreeLinks;
use std::ops::Range;

/// The layout of a communicator; equal on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceLayout {
    /// Ranks.
    pub nranks: u32,
    /// The rank at each position, for each ring.
    pub rings: Vec<Vec<u32>>,
    /// Channels of connections between all pairs.
    pub mesh_channels: u32,
    /// Slots of rings.
    pub ring: ConnLayout,
    /// Slots between pairs.
    pub mesh: ConnLayout,
    /// Trees, on channels of their own.
    pub trees: DeviceTrees,
}

const CONTROL_BYTES: usize = size_of::<ConnControl>();

impl DeviceLayout {
    /// Along these rings, and no trees.
    pub fn new(
        nranks: u32,
        rings: Vec<Vec<u32>>,
        mesh_channels: u32,
        ring: ConnLayout,
        mesh: ConnLayout,
    ) -> DeviceLayout {
        let trees = DeviceTrees { trees: Vec::new(), slots: ring };
        DeviceLayout { nranks, rings, mesh_channels, ring, mesh, trees }
    }

    /// The same with these trees, each every rank's links.
    pub fn with_trees(mut self, trees: Vec<Vec<TreeLinks>>, slots: ConnLayout) -> DeviceLayout {
        self.trees = DeviceTrees { trees, slots };
        self
    }

    fn peers(&self) -> usize {
        self.nranks as usize - 1
    }

    /// Index of the connection with `peer` in a rank's list of a mesh channel.
    pub fn mesh_index(rank: u32, peer: u32) -> usize {
        debug_assert_ne!(rank, peer);
        peer as usize - usize::from(peer > rank)
    }

    /// Position of a rank in a ring.
    pub fn position(&self, channel: usize, rank: u32) -> usize {
        self.rings[channel].iter().position(|at| *at == rank).expect("a ring has every rank")
    }

    /// The rank `steps` positions after `rank`.
    pub fn along_ring(&self, channel: usize, rank: u32, steps: usize) -> u32 {
        let ring = &self.rings[channel];
        ring[(self.position(channel, rank) + steps) % ring.len()]
    }

    /// The producer's side of a ring's connection from any rank to its next.
    pub fn ring_control(&self, channel: usize) -> Range<usize> {
        self.controls(channel)
    }

    /// The producer's side of the connection from `rank` to `peer`.
    pub fn mesh_control(&self, rank: u32, channel: usize, peer: u32) -> Range<usize> {
        self.controls(self.rings.len() + channel * self.peers() + Self::mesh_index(rank, peer))
    }

    fn controls(&self, index: usize) -> Range<usize> {
        index * CONTROL_BYTES..(index + 1) * CONTROL_BYTES
    }

    /// The consumer's side, with slots, of a ring's connection to any rank from the one before.
    pub fn ring_block(&self, channel: usize) -> Range<usize> {
        let start = self.controls_bytes() + channel * self.ring.total_bytes();
        start..start + self.ring.total_bytes()
    }

    /// The consumer's side, with slots, of the connection to `rank` from `peer`.
    pub fn mesh_block(&self, rank: u32, channel: usize, peer: u32) -> Range<usize> {
        let index = channel * self.peers() + Self::mesh_index(rank, peer);
        let start = self.controls_bytes()
            + self.rings.len() * self.ring.total_bytes()
            + index * self.mesh.total_bytes();
        start..start + self.mesh.total_bytes()
    }

    fn controls_bytes(&self) -> usize {
        (self.rings.len() + self.mesh_connections()) * CONTROL_BYTES
    }

    fn mesh_connections(&self) -> usize {
        self.mesh_channels as usize * self.peers()
    }

    /// The producer's side of the connection from `rank` to a neighbour in a channel's tree.
    pub fn tree_control(&self, rank: u32, channel: usize, neighbour: u32) -> Range<usize> {
        self.in_trees(self.trees.control(rank, channel, neighbour))
    }

    /// The consumer's side, with slots, of the connection to `rank` from a neighbour in a channel's tree.
    pub fn tree_block(&self, rank: u32, channel: usize, neighbour: u32) -> Range<usize> {
        self.in_trees(self.trees.block(rank, channel, neighbour))
    }

    fn in_trees(&self, share: Range<usize>) -> Range<usize> {
        let start = self.alike_bytes();
        start + share.start..start + share.end
    }

    /// Bytes that are laid out alike on all ranks: all but the trees'.
    fn alike_bytes(&self) -> usize {
        self.controls_bytes()
            + self.rings.len() * self.ring.total_bytes()
            + self.mesh_connections() * self.mesh.total_bytes()
    }

    /// Bytes of a rank's memory; none for a rank that is alone.
    pub fn len_bytes(&self, rank: u32) -> usize {
        if self.nranks <= 1 { 0 } else { self.alike_bytes() + self.trees.len_bytes(rank) }
    }

    /// Bytes of a rank's memory that its connections from `peer` take.
    pub fn inbound_bytes(&self, rank: u32, peer: u32) -> usize {
        let rings = 0..self.rings.len();
        let before = rings.filter(|channel| self.along_ring(*channel, peer, 1) == rank).count();
        before * self.ring.total_bytes()
            + self.mesh_channels as usize * self.mesh.total_bytes()
            + self.trees.shared_channels(rank, peer) * self.trees.slots.total_bytes()
    }

    /// Bytes of a rank's memory that its connections to `peer` take.
    pub fn outbound_bytes(&self, rank: u32, peer: u32) -> usize {
        let rings = 0..self.rings.len();
        let after = rings.filter(|channel| self.along_ring(*channel, rank, 1) == peer).count();
        let in_trees = self.trees.shared_channels(rank, peer);
        (after + self.mesh_channels as usize + in_trees) * CONTROL_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Channels;
    use proptest::prelude::*;

    const SLOTS: ConnLayout =
        ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };

    fn layout(nranks: u32, rings: u32, mesh: u32, trees: u32) -> DeviceLayout {
        let small = |simple_slot_bytes| ConnLayout { simple_slot_bytes, ..SLOTS };
        let channels = Channels::in_rank_order(nranks);
        let trees = (0..trees).map(|channel| channels.tree(channel as usize).to_vec()).collect();
        let ring = |channel| {
            let ring = 0..nranks;
            if channel % 2 == 1 { ring.rev().collect() } else { ring.collect() }
        };
        let rings = (0..rings).map(ring).collect();
        DeviceLayout::new(nranks, rings, mesh, SLOTS, small(384)).with_trees(trees, small(640))
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_everything_is_used(
            nranks in 2u32..10,
            rings in 1u32..6,
            mesh in 1u32..5,
            trees in 0u32..6,
        ) {
            let layout = layout(nranks, rings, mesh, trees);
            for rank in 0..nranks {
                let peers: Vec<u32> = (0..nranks).filter(|peer| *peer != rank).collect();
                let mut ranges = Vec::new();
                for channel in 0..rings as usize {
                    ranges.extend([layout.ring_control(channel), layout.ring_block(channel)]);
                }
                for (channel, peer) in (0..mesh as usize).flat_map(|c| peers.iter().map(move |p| (c, *p))) {
                    ranges.push(layout.mesh_control(rank, channel, peer));
                    ranges.push(layout.mesh_block(rank, channel, peer));
                }
                for channel in 0..trees as usize {
                    for neighbour in layout.trees.neighbours(channel, rank) {
                        ranges.push(layout.tree_control(rank, channel, neighbour));
                        ranges.push(layout.tree_block(rank, channel, neighbour));
                    }
                }
                ranges.sort_by_key(|range| range.start);
                prop_assert_eq!(ranges[0].start, 0);
                for (a, b) in ranges.iter().zip(&ranges[1..]) {
                    prop_assert_eq!(a.end, b.start);
                    prop_assert!(b.start.is_multiple_of(128));
                }
                prop_assert_eq!(ranges.last().map(|range| range.end), Some(layout.len_bytes(rank)));
                let bytes: usize = peers
                    .iter()
                    .map(|peer| layout.inbound_bytes(rank, *peer) + layout.outbound_bytes(rank, *peer))
                    .sum();
                prop_assert_eq!(bytes, layout.len_bytes(rank));
            }
        }

        #[test]
        fn the_rank_after_has_us_before_it(nranks in 2u32..10, rings in 1u32..6) {
            let layout = layout(nranks, rings, 1, 0);
            for (channel, rank) in (0..rings as usize).flat_map(|c| (0..nranks).map(move |r| (c, r))) {
                let next = layout.along_ring(channel, rank, 1);
                prop_assert_eq!(layout.along_ring(channel, next, nranks as usize - 1), rank);
            }
        }
    }

    #[test]
    fn a_rank_alone_needs_nothing() {
        assert_eq!(layout(1, 2, 2, 2).len_bytes(0), 0);
    }
}
