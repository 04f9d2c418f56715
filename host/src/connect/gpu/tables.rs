//! The tables of a rank's connection ends, as its kernels read them.

use super::layout::{ConnName, DeviceLayout};
use crate::gpu::{CudaError, Gpu};
use crate::machine::{ConnKind, ConnLists, ConnTables};
use oxccl_shared::abi::{ConnEnd, ConnLayout, KernelTree, Rank};
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use std::mem::offset_of;

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

/// Ends of one kind of channel: those on which this rank sends and those on which it receives, channel by channel.
#[derive(Default)]
struct Ends {
    send: Vec<u8>,
    recv: Vec<u8>,
    rings: Vec<u8>,
    trees: Vec<u8>,
    nconns: usize,
    channels: usize,
}

/// Returns the addresses of a connection.
pub(super) type At<'a> = &'a dyn Fn(ConnName) -> ConnSite;

impl Ends {
    /// Adds this rank's end of a connection.
    fn add(&mut self, layout: &DeviceLayout, name: ConnName, at: At<'_>) {
        let end = end(at(name), layout.slots(name.kind), name.peer);
        if name.is_send { self.send.extend(end) } else { self.recv.extend(end) }
    }

    fn add_both(&mut self, layout: &DeviceLayout, kind: ConnKind, channel: usize, peer: Rank, at: At<'_>) {
        for is_send in [true, false] {
            self.add(layout, ConnName { kind, channel, peer, is_send }, at);
        }
    }

    /// The room of a connection that there is not.
    fn add_none(&mut self) {
        for list in [&mut self.send, &mut self.recv] {
            list.resize(list.len() + size_of::<ConnEnd>(), 0);
        }
    }

    fn of_rings(layout: &DeviceLayout, rank: Rank, at: At<'_>) -> Ends {
        let mut ends = Ends { nconns: 1, channels: layout.rings.len(), ..Ends::default() };
        for channel in 0..layout.rings.len() {
            let next = layout.along_ring(channel, rank, 1);
            let before = layout.along_ring(channel, rank, layout.nranks as usize - 1);
            for (peer, is_send) in [(next, true), (before, false)] {
                ends.add(layout, ConnName { kind: ConnKind::Ring, channel, peer, is_send }, at);
            }
        }
        ends.rings = ring_places(layout, rank);
        ends
    }

    fn of_mesh(layout: &DeviceLayout, rank: Rank, at: At<'_>) -> Ends {
        let channels = layout.mesh_channels as usize;
        let mut ends = Ends { nconns: layout.nranks as usize - 1, channels, ..Ends::default() };
        for channel in 0..channels {
            for peer in (0..layout.nranks).map(Rank).filter(|peer| *peer != rank) {
                if layout.has_mesh(channel, rank, peer) {
                    ends.add_both(layout, ConnKind::Mesh, channel, peer, at);
                } else {
                    ends.add_none();
                }
            }
        }
        ends
    }

    /// A channel's list has room for as many neighbours as the rank has on any of its channels.
    fn of_trees(layout: &DeviceLayout, rank: Rank, at: At<'_>) -> Ends {
        let trees = &layout.trees;
        let (nconns, channels) = (trees.neighbours_max(rank), trees.channels());
        let mut ends = Ends { nconns, channels, ..Ends::default() };
        for channel in 0..channels {
            for peer in trees.neighbours(channel, rank) {
                ends.add_both(layout, ConnKind::Tree, channel, peer, at);
            }
            let filled_bytes = (channel + 1) * nconns * size_of::<ConnEnd>();
            ends.send.resize(filled_bytes, 0);
            ends.recv.resize(filled_bytes, 0);
        }
        ends.trees = tree_places(layout, rank);
        ends
    }

    /// A head has the network above it. A channel's list has room for as many as the rank has on any.
    fn of_chain(layout: &DeviceLayout, rank: Rank, at: At<'_>) -> Ends {
        let chains = &layout.chains;
        let (nconns, channels) = (chains.conns_max(rank), chains.channels());
        let mut ends = Ends { nconns, channels, ..Ends::default() };
        for channel in 0..channels {
            let Some(place) = chains.place(channel, rank) else { continue };
            for peer in place.below.into_iter().chain([place.above]) {
                ends.add_both(layout, ConnKind::Chain, channel, peer, at);
            }
            let filled_bytes = (channel + 1) * nconns * size_of::<ConnEnd>();
            ends.send.resize(filled_bytes, 0);
            ends.recv.resize(filled_bytes, 0);
            let KernelTree { children, has_parent } = place.of_kernel();
            ends.trees.extend([children, has_parent].into_iter().flat_map(u32::to_le_bytes));
        }
        ends
    }

    /// Offsets into the image.
    fn put(&self, image: &mut Image) -> ConnLists {
        let count = self.nconns * self.channels;
        ConnLists {
            send: image.push(&self.send),
            recv: image.push(&self.recv),
            send_cursors: image.push_zeros(count * size_of::<ProducerCursor>()),
            recv_cursors: image.push_zeros(count * size_of::<ConsumerCursor>()),
            rings: image.push(&self.rings),
            trees: image.push(&self.trees),
            nconns: self.nconns as u32,
        }
    }
}

/// The tables of a rank before their upload: addresses of lists are offsets into `bytes`.
pub(super) struct TableImage {
    pub bytes: Vec<u8>,
    pub ring: ConnLists,
    pub mesh: ConnLists,
    pub tree: ConnLists,
    pub chain: ConnLists,
    scratch: u64,
}

/// The tables of `rank`; `at` returns the addresses of its connections.
pub(super) fn image(layout: &DeviceLayout, rank: Rank, at: At<'_>) -> TableImage {
    let mut image = Image::default();
    let kinds = [Ends::of_rings, Ends::of_mesh, Ends::of_trees, Ends::of_chain];
    let [ring, mesh, tree, chain] = kinds.map(|ends| match layout.nranks {
        0 | 1 => Ends::default().put(&mut image),
        _ => ends(layout, rank, at).put(&mut image),
    });
    let scratch = image.push_zeros(ALIGN);
    let Image(bytes) = image;
    TableImage { bytes, ring, mesh, tree, chain, scratch }
}

/// Writes the tables of `rank` to its device.
pub(super) fn upload(
    layout: &DeviceLayout,
    rank: Rank,
    device: &dyn Gpu,
    at: At<'_>,
) -> Result<ConnTables, CudaError> {
    let TableImage { bytes, ring, mesh, tree, chain, scratch } = image(layout, rank, at);
    let memory = device.upload(&bytes)?;
    let at = memory.address();
    // Each connection serves all protocols, and the mesh messages too.
    let lists = [ring, mesh, tree, mesh, chain].map(|lists| [lists.at(at); 3]);
    Ok(ConnTables { lists, scratch: at + scratch, memory })
}

/// The tables of connections that are made later, with room for all of them: a copy of what the device has.
pub(super) struct Tables {
    bytes: Vec<u8>,
    /// Addresses are offsets into `bytes`.
    lists: [[ConnLists; 3]; ConnKind::COUNT],
    /// On the device.
    at: u64,
}

impl Tables {
    /// Writes empty tables of `rank` to its device.
    pub fn upload(
        layout: &DeviceLayout,
        rank: Rank,
        device: &dyn Gpu,
    ) -> Result<(Tables, ConnTables), CudaError> {
        let mut image = Image::default();
        let places = [
            (ConnKind::Ring, image.push(&ring_places(layout, rank))),
            (ConnKind::Tree, image.push(&tree_places(layout, rank))),
        ];
        let lists = ConnKind::ALL.map(|kind| {
            let nconns = layout.conns_each(kind, rank);
            let count = nconns * layout.channels(kind);
            let at = |wanted| places.iter().find(|(kind, _)| *kind == wanted).map_or(0, |(_, at)| *at);
            [(); 3].map(|()| ConnLists {
                send: image.push_zeros(count * size_of::<ConnEnd>()),
                recv: image.push_zeros(count * size_of::<ConnEnd>()),
                send_cursors: image.push_zeros(count * size_of::<ProducerCursor>()),
                recv_cursors: image.push_zeros(count * size_of::<ConsumerCursor>()),
                rings: at(ConnKind::Ring),
                trees: at(ConnKind::Tree),
                nconns: nconns as u32,
            })
        });
        let scratch = image.push_zeros(ALIGN);
        let Image(bytes) = image;
        let memory = device.upload(&bytes)?;
        let at = memory.address();
        let on_device = lists.map(|lists| lists.map(|lists| lists.at(at)));
        let tables = Tables { bytes, lists, at };
        Ok((tables, ConnTables { lists: on_device, scratch: at + scratch, memory }))
    }

    /// Adds the ends of a part's connections, of which kernels under way use none. Entries beside them are written as they are.
    pub fn add(
        &mut self,
        layout: &DeviceLayout,
        rank: Rank,
        device: &dyn Gpu,
        at: At<'_>,
    ) -> Result<(), CudaError> {
        let Some(part) = layout.part else { return Ok(()) };
        let ConnLists { send, recv, .. } = self.lists[part.kind as usize][part.protocol as usize];
        let (mut first, mut last) = ([usize::MAX; 2], [0; 2]);
        for name in layout.conns(rank) {
            let (list, way) = if name.is_send { (send, 0) } else { (recv, 1) };
            let start = list as usize + layout.index_of(rank, name) * size_of::<ConnEnd>();
            let entry = end(at(name), layout.slots(name.kind), name.peer);
            self.bytes[start..start + entry.len()].copy_from_slice(&entry);
            first[way] = first[way].min(start);
            last[way] = last[way].max(start + entry.len());
        }
        for (first, last) in first.into_iter().zip(last).filter(|(first, last)| first < last) {
            device.write(self.at + first as u64, &self.bytes[first..last])?;
        }
        Ok(())
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

    fn all_ends(layout: &DeviceLayout, of: fn(&DeviceLayout, Rank, At<'_>) -> Ends) -> Vec<Ends> {
        let of = |rank| {
            of(layout, rank, &|name| {
                ConnSite::new(layout.in_memory(rank, name, &base), layout.slots(name.kind))
            })
        };
        (0..layout.nranks).map(Rank).map(of).collect()
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
        let size = size_of::<ConnEnd>();
        let (rings, meshes) = (all_ends(&layout, Ends::of_rings), all_ends(&layout, Ends::of_mesh));
        let is_on_host = |a: Rank, b: Rank| u64::from((a.0 < 2) != (b.0 < 2));
        let pair = |list: &[u8], index: usize| (word(list, index * size), word(list, index * size + 8));
        for rank in (0..5).map(Rank) {
            for channel in 0..3 {
                let next = layout.along_ring(channel, rank, 1);
                let sent = pair(&rings[rank.index()].send, channel);
                assert_eq!(sent, pair(&rings[next.index()].recv, channel));
                let domain = is_on_host(rank, next);
                assert_eq!(
                    (owner(sent.0), owner(sent.1)),
                    ((rank.0.into(), domain), (next.0.into(), domain))
                );
                let peer = &rings[rank.index()].send[channel * size + offset_of!(ConnEnd, peer)..][..4];
                assert_eq!(peer, next.0.to_le_bytes());
            }
            for (channel, peer) in
                (0..2).flat_map(|c| (0..5).map(move |p| (c, Rank(p)))).filter(|x| x.1 != rank)
            {
                let index = |of: Rank, with: Rank| channel * 4 + with.index() - usize::from(with > of);
                let sent = pair(&meshes[rank.index()].send, index(rank, peer));
                assert_eq!(sent, pair(&meshes[peer.index()].recv, index(peer, rank)));
                assert_eq!(owner(sent.1), (peer.0.into(), is_on_host(rank, peer)));
            }
        }
        let word = |at: usize| u32::from_le_bytes(rings[4].rings[at * 4..][..4].try_into().unwrap());
        assert_eq!((6..12).map(word).collect::<Vec<_>>(), [2, 3, 1, 4, 0, 2]);
    }

    #[test]
    fn both_ends_of_a_tree_mean_the_same_memory() {
        let slots = ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };
        let size = size_of::<ConnEnd>();
        let pair = |list: &[u8], index: usize| (word(list, index * size), word(list, index * size + 8));
        for nranks in 2..9 {
            let channels = Channels::in_rank_order(nranks);
            let trees = (0..3).map(|channel| channels.tree(channel).to_vec()).collect();
            let layout = DeviceLayout::new(nranks, channels.rings, 1, slots, slots).with_trees(trees, slots);
            let layout = layout.with_domains(Domains::new([(Rank(0), Rank(1))]));
            let trees = all_ends(&layout, Ends::of_trees);
            for (rank, ends) in (0..).map(Rank).zip(&trees) {
                for channel in 0..3 {
                    let place = layout.trees.place(channel, rank);
                    assert_eq!(
                        word(&ends.trees, channel * 8),
                        u64::from(place.children) | u64::from(place.has_parent) << 32
                    );
                    for (at, peer) in layout.trees.neighbours(channel, rank).enumerate() {
                        let index = channel * ends.nconns + at;
                        let sent = pair(&ends.send, index);
                        let theirs = &trees[peer.index()];
                        let back = layout.trees.neighbours(channel, peer).position(|p| p == rank).unwrap();
                        assert_eq!(sent, pair(&theirs.recv, channel * theirs.nconns + back));
                        let domain = u64::from(rank.max(peer) == Rank(1));
                        assert_eq!(
                            (owner(sent.0), owner(sent.1)),
                            ((rank.0.into(), domain), (peer.0.into(), domain))
                        );
                        let named = &ends.recv[index * size + offset_of!(ConnEnd, peer)..][..4];
                        assert_eq!(named, peer.0.to_le_bytes());
                    }
                }
                assert_eq!(ends.send.len(), 3 * ends.nconns * size);
                assert_eq!(ends.recv.len(), ends.send.len());
            }
        }
    }
}
