//! The tables of a rank's connection ends, as its kernels read them.

use super::heads::DeviceHeads;
use super::layout::{ConnName, DeviceLayout};
use crate::gpu::{CudaError, Gpu};
use crate::machine::{ConnKind, ConnLists, ConnTables};
use oxccl_shared::abi::{ConnEnd, ConnLayout, KernelTree, Rank};
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;

/// Alignment of lists: whole lines.
const ALIGN: usize = 128;

/// The image of a table under construction.
#[derive(Default)]
struct Image(Vec<u8>);

impl Image {
    /// Appends a list, and returns its offset.
    fn push(&mut self, bytes: &[u8]) -> u64 {
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        let at = self.0.len();
        self.0.extend_from_slice(bytes);
        at as u64
    }

    fn push_zeros(&mut self, len_bytes: usize) -> u64 {
        self.push(&vec![0; len_bytes])
    }
}

/// Addresses of a connection, for this rank's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConnSite {
    pub producer_side: u64,
    pub consumer_side: u64,
    /// The first Simple slot.
    pub counted: u64,
}

impl ConnSite {
    /// Both sides, with all slots after the consumer's control words.
    pub fn new([producer_side, consumer_side]: [u64; 2], slots: ConnLayout) -> ConnSite {
        ConnSite { producer_side, consumer_side, counted: consumer_side + slots.simple_offset() as u64 }
    }
}

/// A [`ConnEnd`] in the memory of a device.
fn end(site: ConnSite, layout: ConnLayout, peer: Rank) -> [u8; size_of::<ConnEnd>()] {
    let mut bytes = [0; size_of::<ConnEnd>()];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(offset_of!(ConnEnd, producer_side), &site.producer_side.to_le_bytes());
    put(offset_of!(ConnEnd, consumer_side), &site.consumer_side.to_le_bytes());
    put(offset_of!(ConnEnd, counted), &site.counted.to_le_bytes());
    let slots = offset_of!(ConnEnd, layout);
    put(slots + offset_of!(ConnLayout, ll_slot_bytes), &layout.ll_slot_bytes.to_le_bytes());
    put(slots + offset_of!(ConnLayout, ll128_slot_bytes), &layout.ll128_slot_bytes.to_le_bytes());
    put(slots + offset_of!(ConnLayout, simple_slot_bytes), &layout.simple_slot_bytes.to_le_bytes());
    put(offset_of!(ConnEnd, peer), &peer.0.to_le_bytes());
    bytes
}

/// A rank's tables, with room for all connections, whenever these are made: a copy of what the device has.
pub(super) struct Tables {
    bytes: Vec<u8>,
    /// Addresses are offsets into `bytes`.
    lists: [[ConnLists; 3]; ConnKind::COUNT],
    scratch: u64,
    /// On the device.
    at: u64,
}

impl Tables {
    /// Empty tables of `rank`.
    pub fn new(layout: &DeviceLayout, rank: Rank) -> Tables {
        let mut image = Image::default();
        let rings = image.push(&ring_places(layout, rank));
        let trees = image.push(&tree_places(layout, rank));
        let mut in_hosts = |heads| {
            let owners = image.push(&owners(heads, rank));
            (owners, image.push(&host_places(heads, rank)))
        };
        let (chains, stars) = (in_hosts(&layout.chains), in_hosts(&layout.stars));
        let is_alone = layout.nranks < 2;
        let lists = ConnKind::ALL.map(|kind| {
            let nconns = if is_alone { 0 } else { layout.conns_each(kind, rank) };
            let count = nconns * layout.channels(kind);
            let (rings, trees) = match kind {
                ConnKind::Chain => chains,
                ConnKind::Star => stars,
                _ => (rings, trees),
            };
            let mut of_protocol = || ConnLists {
                send: image.push_zeros(count * size_of::<ConnEnd>()),
                recv: image.push_zeros(count * size_of::<ConnEnd>()),
                send_cursors: image.push_zeros(count * size_of::<ProducerCursor>()),
                recv_cursors: image.push_zeros(count * size_of::<ConsumerCursor>()),
                rings,
                trees,
                nconns: nconns as u32,
            };
            // Connections over a network serve all protocols: what is received on them is counted once.
            if layout.is_wide() { [of_protocol(); 3] } else { [(); 3].map(|()| of_protocol()) }
        });
        let scratch = image.push_zeros(ALIGN);
        let Image(bytes) = image;
        Tables { bytes, lists, scratch, at: 0 }
    }

    /// Writes empty tables of `rank` to its device.
    pub fn upload(
        layout: &DeviceLayout,
        rank: Rank,
        device: &dyn Gpu,
    ) -> Result<(Tables, ConnTables), CudaError> {
        let mut tables = Tables::new(layout, rank);
        let memory = device.upload(&tables.bytes)?;
        let at = memory.address();
        tables.at = at;
        let lists = tables.lists.map(|lists| lists.map(|lists| lists.at(at)));
        let scratch = at + tables.scratch;
        Ok((tables, ConnTables { lists, scratch, memory }))
    }

    /// Adds the ends of connections of a layout, of which kernels under way use none. Entries beside them are written as they are.
    pub fn add(
        &mut self,
        layout: &DeviceLayout,
        rank: Rank,
        device: &dyn Gpu,
        conns: impl Iterator<Item = (ConnName, ConnSite)>,
    ) -> Result<(), CudaError> {
        // By list, from the first entry to the last.
        let mut written: BTreeMap<(ConnKind, bool), Range<usize>> = BTreeMap::new();
        for (name, site) in conns {
            let entry = self.put(layout, rank, name, site);
            let range = written.entry((name.kind, name.is_send)).or_insert(entry.clone());
            *range = range.start.min(entry.start)..range.end.max(entry.end);
        }
        for Range { start, end } in written.into_values() {
            device.write(self.at + start as u64, &self.bytes[start..end])?;
        }
        Ok(())
    }

    /// Adds an end here alone. Returns the place of its entry.
    pub fn put(&mut self, layout: &DeviceLayout, rank: Rank, name: ConnName, site: ConnSite) -> Range<usize> {
        let protocol = layout.part.and_then(|part| part.protocol).map_or(0, |protocol| protocol as usize);
        let ConnLists { send, recv, .. } = self.lists[name.kind as usize][protocol];
        let list = if name.is_send { send } else { recv };
        let start = list as usize + layout.index_of(rank, name) * size_of::<ConnEnd>();
        let entry = end(site, layout.slots(name.kind), name.peer);
        let place = start..start + entry.len();
        self.bytes[place.clone()].copy_from_slice(&entry);
        place
    }

    /// The tables as the device has them.
    #[cfg(test)]
    pub fn on_device(&self) -> (&[u8], &[[ConnLists; 3]; ConnKind::COUNT]) {
        (&self.bytes, &self.lists)
    }
}

/// A rank's position in each ring, and the ranks in its order.
fn ring_places(layout: &DeviceLayout, rank: Rank) -> Vec<u8> {
    let places = (0..layout.rings.len()).flat_map(|channel| {
        let position = layout.position(channel, rank) as u32;
        [position].into_iter().chain(layout.rings[channel].iter().map(|rank| rank.0))
    });
    places.flat_map(u32::to_le_bytes).collect()
}

/// A rank's place in each tree.
fn tree_places(layout: &DeviceLayout, rank: Rank) -> Vec<u8> {
    let places = (0..layout.trees.channels()).flat_map(|channel| {
        let KernelTree { children, has_parent } = layout.trees.place(channel, rank);
        [children, has_parent]
    });
    places.flat_map(u32::to_le_bytes).collect()
}

/// A rank's place in its host on each channel.
fn host_places(heads: &DeviceHeads, rank: Rank) -> Vec<u8> {
    let places = (0..heads.channels()).flat_map(|channel| {
        let place = heads.place(channel, rank).map(|place| place.of_kernel());
        place.into_iter().flat_map(|KernelTree { children, has_parent }| [children, has_parent])
    });
    places.flat_map(u32::to_le_bytes).collect()
}

/// Where all ranks are, seen from a rank's place on each channel.
fn owners(heads: &DeviceHeads, rank: Rank) -> Vec<u8> {
    let owners = (0..heads.channels()).flat_map(|channel| heads.owners(channel, rank));
    owners.flat_map(|owner| owner.0.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Channels;
    use crate::transport::p2p::{Domain, Domains};

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// Bit 36 distinguishes a rank's memories, the bits above 32 the ranks.
    fn base(rank: Rank, domain: Domain) -> u64 {
        1 << 40 | (domain as u64) << 36 | u64::from(rank.0) << 32
    }

    /// The tables of all ranks, with all connections in memory.
    fn all_tables(layout: &DeviceLayout) -> Vec<Tables> {
        let of = |rank| {
            let mut tables = Tables::new(layout, rank);
            for name in layout.conns(rank) {
                let site = ConnSite::new(layout.in_memory(rank, name, &base), layout.slots(name.kind));
                tables.put(layout, rank, name, site);
            }
            tables
        };
        (0..layout.nranks).map(Rank).map(of).collect()
    }

    /// The bytes of a list's entry.
    fn entry(tables: &Tables, kind: ConnKind, is_send: bool, index: usize) -> &[u8] {
        let lists = &tables.lists[kind as usize][0];
        let list = if is_send { lists.send } else { lists.recv };
        &tables.bytes[list as usize + index * size_of::<ConnEnd>()..][..size_of::<ConnEnd>()]
    }

    /// The addresses of both sides.
    fn sides(tables: &Tables, kind: ConnKind, is_send: bool, index: usize) -> (u64, u64) {
        let entry = entry(tables, kind, is_send, index);
        (word(entry, 0), word(entry, 8))
    }

    fn named(entry: &[u8]) -> u32 {
        u32::from_le_bytes(entry[offset_of!(ConnEnd, peer)..][..4].try_into().unwrap())
    }

    /// The rank and the memory of an address.
    fn owner(address: u64) -> (u64, u64) {
        (address >> 32 & 0xf, address >> 36 & 1)
    }

    /// A sender's end equals the receiver's end, word for word.
    #[test]
    fn both_ends_mean_the_same_memory() {
        let slots = ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };
        let in_order = || (0..5).map(Rank).collect();
        let rings = vec![in_order(), [3, 1, 4, 0, 2].map(Rank).to_vec(), in_order()];
        // Two sockets, of two ranks and of three.
        let domains = Domains::new([0, 1].into_iter().flat_map(|a| [2, 3, 4].map(|b| (Rank(a), Rank(b)))));
        let layout = DeviceLayout::new(5, rings, 2, slots, slots).with_domains(domains);
        let all = all_tables(&layout);
        let is_on_host = |a: Rank, b: Rank| u64::from((a.0 < 2) != (b.0 < 2));
        for rank in (0..5).map(Rank) {
            let mine = &all[rank.index()];
            for channel in 0..3 {
                let next = layout.along_ring(channel, rank, 1);
                let sent = sides(mine, ConnKind::Ring, true, channel);
                assert_eq!(sent, sides(&all[next.index()], ConnKind::Ring, false, channel));
                let domain = is_on_host(rank, next);
                assert_eq!(
                    (owner(sent.0), owner(sent.1)),
                    ((rank.0.into(), domain), (next.0.into(), domain))
                );
                assert_eq!(named(entry(mine, ConnKind::Ring, true, channel)), next.0);
            }
            let pairs = [ConnKind::Mesh, ConnKind::Pair].into_iter();
            let pairs =
                pairs.flat_map(|kind| (0..2).flat_map(move |c| (0..5).map(move |p| (kind, c, Rank(p)))));
            for (kind, channel, peer) in pairs.filter(|x| x.2 != rank) {
                let index = |of: Rank, with: Rank| channel * 4 + with.index() - usize::from(with > of);
                let sent = sides(mine, kind, true, index(rank, peer));
                assert_eq!(sent, sides(&all[peer.index()], kind, false, index(peer, rank)));
                assert_eq!(owner(sent.1), (peer.0.into(), is_on_host(rank, peer)));
            }
        }
        let places = all[4].lists[ConnKind::Ring as usize][0].rings as usize;
        let word = |at: usize| u32::from_le_bytes(all[4].bytes[places + at * 4..][..4].try_into().unwrap());
        assert_eq!((6..12).map(word).collect::<Vec<_>>(), [2, 3, 1, 4, 0, 2]);
    }

    #[test]
    fn both_ends_of_a_tree_mean_the_same_memory() {
        let slots = ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };
        let kind = ConnKind::Tree;
        for nranks in 2..9 {
            let channels = Channels::in_rank_order(nranks);
            let trees = (0..3).map(|channel| channels.tree(channel).to_vec()).collect();
            let layout = DeviceLayout::new(nranks, channels.rings, 1, slots, slots).with_trees(trees, slots);
            let layout = layout.with_domains(Domains::new([(Rank(0), Rank(1))]));
            let all = all_tables(&layout);
            for (rank, tables) in (0..).map(Rank).zip(&all) {
                let nconns = |of: &Tables| of.lists[kind as usize][0].nconns as usize;
                for channel in 0..3 {
                    let place = layout.trees.place(channel, rank);
                    let places = tables.lists[kind as usize][0].trees as usize;
                    assert_eq!(
                        word(&tables.bytes[places..], channel * 8),
                        u64::from(place.children) | u64::from(place.has_parent) << 32
                    );
                    for (at, peer) in layout.trees.neighbours(channel, rank).enumerate() {
                        let index = channel * nconns(tables) + at;
                        let (sent, theirs) = (sides(tables, kind, true, index), &all[peer.index()]);
                        let back = layout.trees.neighbours(channel, peer).position(|p| p == rank).unwrap();
                        assert_eq!(sent, sides(theirs, kind, false, channel * nconns(theirs) + back));
                        let domain = u64::from(rank.max(peer) == Rank(1));
                        assert_eq!(
                            (owner(sent.0), owner(sent.1)),
                            ((rank.0.into(), domain), (peer.0.into(), domain))
                        );
                        assert_eq!(named(entry(tables, kind, false, index)), peer.0);
                    }
                }
            }
        }
    }
}
