//! Which of a rank's connections lead over a network, and where their blocks lie: one after the other, in one piece of memory.

use crate::channel::device::layout::{ConnName, DeviceLayout};
use oxccl_shared::abi::ConnLayout;

/// One connection's half on this host: control words and slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetPlace {
    /// Which.
    pub name: ConnName,
    /// Where it begins.
    pub offset: usize,
    /// Its slots.
    pub slots: ConnLayout,
}

/// A rank's connections over a network, sorted by name: of those to a rank, and of those from it, that rank has its ends in the
/// same order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetPlaces {
    /// All.
    pub places: Vec<NetPlace>,
    /// Bytes of the memory.
    pub len_bytes: usize,
}

impl NetPlaces {
    /// Those of `rank`.
    pub fn new(layout: &DeviceLayout, rank: u32) -> NetPlaces {
        let is_far = |name: &ConnName| layout.ways.is_net(rank, name.peer);
        let mut names: Vec<ConnName> = layout.conns(rank).filter(is_far).collect();
        names.sort_unstable();
        let mut len_bytes = 0;
        let mut place = |name: ConnName| {
            let (offset, slots) = (len_bytes, layout.slots(name.kind));
            len_bytes += slots.total_bytes();
            NetPlace { name, offset, slots }
        };
        let places = names.into_iter().map(&mut place).collect();
        NetPlaces { places, len_bytes }
    }

    /// Where a connection's block begins, if it leads over the network.
    pub fn offset(&self, name: ConnName) -> Option<usize> {
        let at = self.places.binary_search_by_key(&name, |place| place.name).ok()?;
        Some(self.places[at].offset)
    }

    /// Bytes of the connections to a rank, or from it.
    pub fn bytes_with(&self, peer: u32, is_send: bool) -> usize {
        let of_peer =
            self.places.iter().filter(|place| place.name.peer == peer && place.name.is_send == is_send);
        of_peer.map(|place| place.slots.total_bytes()).sum()
    }

    /// The ranks at the other ends of those that send, or receive, in order.
    pub fn peers(&self, is_send: bool) -> Vec<u32> {
        self.one_way(is_send).map(|place| place.name.peer).collect()
    }

    /// Those that send, or receive, in order.
    pub fn one_way(&self, is_send: bool) -> impl Iterator<Item = &NetPlace> {
        self.places.iter().filter(move |place| place.name.is_send == is_send)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::device::ways::{WaySettings, Ways};
    use crate::topology::Channels;
    use crate::transport::PeerInfo;
    use proptest::prelude::*;

    const SLOTS: ConnLayout =
        ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };

    fn layout(nranks: u32) -> DeviceLayout {
        let channels = Channels::in_rank_order(nranks);
        let trees = (0..3).map(|channel| channels.tree(channel).to_vec()).collect();
        let rings = vec![(0..nranks).collect(), (0..nranks).rev().collect()];
        let small = |simple_slot_bytes| ConnLayout { simple_slot_bytes, ..SLOTS };
        DeviceLayout::new(nranks, rings, 2, SLOTS, small(384)).with_trees(trees, small(640))
    }

    proptest! {
        /// Every connection between groups has a place at both ends, and both count alike; no other has one.
        #[test]
        fn both_ends_list_the_same_connections(
            hosts in proptest::collection::vec(0u64..3, 2..8),
            memory: bool,
        ) {
            let nranks = hosts.len() as u32;
            let peers: Vec<PeerInfo> =
                hosts.iter().map(|host| PeerInfo { host: *host, ..PeerInfo::default() }).collect();
            let ways = Ways::new(&peers, WaySettings { memory, network: true });
            let layout = layout(nranks).with_ways(ways.clone());
            let of: Vec<NetPlaces> = (0..nranks).map(|rank| NetPlaces::new(&layout, rank)).collect();
            for (rank, places) in (0..nranks).zip(&of) {
                let mut end = 0;
                for place in &places.places {
                    prop_assert_eq!(place.offset, end, "one after the other");
                    prop_assert!(place.offset.is_multiple_of(128));
                    end += layout.slots(place.name.kind).total_bytes();
                    prop_assert_eq!(places.offset(place.name), Some(place.offset));
                }
                prop_assert_eq!(end, places.len_bytes);
                for name in layout.conns(rank) {
                    prop_assert_eq!(places.offset(name).is_some(), ways.is_net(rank, name.peer));
                }
                for (peer, theirs) in (0..nranks).zip(&of).filter(|(peer, _)| *peer != rank) {
                    let between = |places: &NetPlaces, other: u32, is_send: bool| {
                        let of_pair = places.one_way(is_send).filter(|place| place.name.peer == other);
                        of_pair.map(|place| (place.name.kind, place.name.channel)).collect::<Vec<_>>()
                    };
                    prop_assert_eq!(between(places, peer, true), between(theirs, rank, false));
                    prop_assert_eq!(places.bytes_with(peer, true), theirs.bytes_with(rank, false));
                }
            }
        }
    }
}
