//! A rank's connections over a network, and the places of their blocks: contiguous, in one allocation.

use crate::connect::gpu::layout::{ConnName, DeviceLayout};
use crate::connect::gpu::part::Part;
use oxccl_shared::abi::{ConnLayout, Rank};

/// One connection's half on this host: control words and slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetPlace {
    /// The connection.
    pub name: ConnName,
    /// Its offset.
    pub offset: usize,
    /// Its slots.
    pub slots: ConnLayout,
    /// The first Simple slot for kernels, if those slots are elsewhere.
    pub counted: Option<u64>,
}

impl NetPlace {
    /// Offset of Simple slots in the layout, after all others.
    pub fn counted_offset(&self) -> usize {
        self.slots.simple_offset()
    }

    /// Bytes of host memory.
    pub fn host_bytes(&self) -> usize {
        if self.counted.is_some() { self.counted_offset() } else { self.slots.total_bytes() }
    }
}

/// A rank's connections over a network, sorted by name. The connections between two ranks are in the same order at
/// both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetPlaces {
    /// All.
    pub places: Vec<NetPlace>,
    /// Bytes of host memory.
    pub len_bytes: usize,
}

impl NetPlaces {
    /// The connections of `rank`.
    pub fn new(layout: &DeviceLayout, rank: Rank) -> NetPlaces {
        NetPlaces::of(layout, rank, layout.conns(rank))
    }

    /// The connections of `rank` in these parts.
    pub fn of_parts(layout: &DeviceLayout, rank: Rank, parts: &[Part]) -> NetPlaces {
        let names = parts.iter().flat_map(|part| layout.of_part(*part).conns(rank).collect::<Vec<_>>());
        NetPlaces::of(layout, rank, names)
    }

    fn of(layout: &DeviceLayout, rank: Rank, names: impl Iterator<Item = ConnName>) -> NetPlaces {
        let is_far = |name: &ConnName| layout.routes.is_net(rank, name.peer);
        let mut names: Vec<ConnName> = names.filter(is_far).collect();
        names.sort_unstable();
        let place =
            |name: ConnName| NetPlace { name, offset: 0, slots: layout.slots(name.kind), counted: None };
        NetPlaces { places: names.into_iter().map(place).collect(), len_bytes: 0 }.laid_out()
    }

    /// The same, with the Simple slots of some elsewhere: `counted` returns the address of the first, by place.
    pub fn with_counted(mut self, counted: impl Fn(usize) -> Option<u64>) -> NetPlaces {
        self.places.iter_mut().enumerate().for_each(|(at, place)| place.counted = counted(at));
        self.laid_out()
    }

    fn laid_out(mut self) -> NetPlaces {
        self.len_bytes = 0;
        for place in &mut self.places {
            place.offset = self.len_bytes;
            self.len_bytes += place.host_bytes();
        }
        self
    }

    /// The peers of the sending, or receiving, connections, in order.
    pub fn peers(&self, is_send: bool) -> Vec<Rank> {
        self.one_way(is_send).map(|place| place.name.peer).collect()
    }

    /// The sending, or receiving, connections, in order.
    pub fn one_way(&self, is_send: bool) -> impl Iterator<Item = &NetPlace> {
        self.places.iter().filter(move |place| place.name.is_send == is_send)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::gpu::routes::{RouteSettings, Routes};
    use crate::topology::Channels;
    use crate::transport::PeerInfo;
    use proptest::prelude::*;

    const SLOTS: ConnLayout =
        ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };

    fn layout(nranks: u32) -> DeviceLayout {
        let channels = Channels::in_rank_order(nranks);
        let trees = (0..3).map(|channel| channels.tree(channel).to_vec()).collect();
        let rings = vec![(0..nranks).map(Rank).collect(), (0..nranks).map(Rank).rev().collect()];
        let small = |simple_slot_bytes| ConnLayout { simple_slot_bytes, ..SLOTS };
        DeviceLayout::new(nranks, rings, 2, SLOTS, small(384)).with_trees(trees, small(640))
    }

    proptest! {
        /// Every connection between groups has a place at both ends, in the same order; no other has one.
        #[test]
        fn both_ends_list_the_same_connections(
            hosts in proptest::collection::vec(0u64..3, 2..8),
            memory: bool,
        ) {
            let nranks = hosts.len() as u32;
            let peers: Vec<PeerInfo> =
                hosts.iter().map(|host| PeerInfo { host: *host, ..PeerInfo::default() }).collect();
            let routes = Routes::new(&peers, RouteSettings { memory, network: true });
            let layout = layout(nranks).with_routes(routes.clone(), 1);
            let of: Vec<NetPlaces> = (0..nranks).map(Rank).map(|rank| NetPlaces::new(&layout, rank)).collect();
            for (rank, places) in (0..nranks).map(Rank).zip(&of) {
                let mut end = 0;
                for place in &places.places {
                    prop_assert_eq!(place.offset, end, "one after the other");
                    prop_assert!(place.offset.is_multiple_of(128));
                    end += layout.slots(place.name.kind).total_bytes();
                }
                prop_assert_eq!(end, places.len_bytes);
                for name in layout.conns(rank) {
                    let has_place = places.places.iter().any(|place| place.name == name);
                    prop_assert_eq!(has_place, routes.is_net(rank, name.peer));
                }
                for (peer, theirs) in (0..nranks).map(Rank).zip(&of).filter(|(peer, _)| *peer != rank) {
                    let between = |places: &NetPlaces, other: Rank, is_send: bool| {
                        let of_pair = places.one_way(is_send).filter(|place| place.name.peer == other);
                        of_pair.map(|place| (place.name.kind, place.name.channel)).collect::<Vec<_>>()
                    };
                    prop_assert_eq!(between(places, peer, true), between(theirs, rank, false));
                }
            }
        }
    }
}
