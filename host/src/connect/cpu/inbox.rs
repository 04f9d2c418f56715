//! The place of each connection in its consumer's memory. Producer and consumer compute the same.

use super::graph::RankGraph;
use oxccl_device::conn::{buffers_bytes, outbox_bytes};
use oxccl_shared::abi::{ConnLayout, Rank};

/// Identifies a connection of two ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConnKey {
    /// A connection of a ring or tree channel.
    Channel(u32),
    /// A connection of the mesh: direct algorithms, send and receive.
    Mesh,
}

/// One connection of an inbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InboxEntry {
    /// Its name.
    pub key: ConnKey,
    /// Its producer.
    pub from: Rank,
    /// Its slots.
    pub layout: ConnLayout,
    /// Bytes from the start of the inbox.
    pub offset: usize,
    /// Length of each of the buffers that the two ranks hand to and fro, if there is a connection of the same name the other way.
    pub buffer_bytes: Option<usize>,
}

impl InboxEntry {
    /// Its memory: slots and, of a pair, its buffers ([`share_buffers`](oxccl_device::conn::share_buffers)).
    pub fn len_bytes(&self) -> usize {
        self.layout.total_bytes() + self.buffer_bytes.map_or(0, buffers_bytes)
    }
}

/// What the mesh's connections within a host need.
#[derive(Clone, Copy, Debug)]
pub struct MeshMemory {
    /// Their slots.
    pub layout: ConnLayout,
    /// Length of the buffers that pairs hand to and fro.
    pub buffer_bytes: usize,
    /// Whether the rank has an outbox.
    pub has_outbox: bool,
}

/// All connections that one rank consumes from some of the others.
#[derive(Clone, Debug)]
pub struct Inbox {
    /// In order of offset.
    pub entries: Vec<InboxEntry>,
    /// Bytes of all, and of the outbox.
    pub len_bytes: usize,
    /// Where the buffers begin that the rank itself fills, and all its producers read, if there are some.
    pub outbox: Option<usize>,
}

impl ConnKey {
    /// A number for the wire.
    pub fn tag(self) -> u64 {
        match self {
            ConnKey::Mesh => u64::from(u32::MAX),
            ConnKey::Channel(channel) => u64::from(channel),
        }
    }
}

impl Inbox {
    /// The inbox of `rank` for the producers that `wanted` selects.
    pub fn new(
        graph: &RankGraph,
        nranks: u32,
        rank: Rank,
        ring_layout: ConnLayout,
        mesh: MeshMemory,
        wanted: impl Fn(Rank) -> bool,
    ) -> Inbox {
        let mut inbox = Inbox { entries: Vec::new(), len_bytes: 0, outbox: None };
        for channel in 0..graph.channels() {
            for from in graph.sources(rank, channel).into_iter().filter(|from| wanted(*from)) {
                let is_paired = graph.sources(from, channel).contains(&rank);
                let buffer_bytes = is_paired.then_some(ring_layout.simple_slot_bytes as usize);
                inbox.push(ConnKey::Channel(channel), from, ring_layout, buffer_bytes);
            }
        }
        for from in (0..nranks).map(Rank).filter(|from| *from != rank && wanted(*from)) {
            inbox.push(ConnKey::Mesh, from, mesh.layout, Some(mesh.buffer_bytes));
        }
        if mesh.has_outbox {
            inbox.outbox = Some(inbox.len_bytes);
            inbox.len_bytes += outbox_bytes(mesh.layout.simple_slot_bytes as usize);
        }
        inbox
    }

    fn push(&mut self, key: ConnKey, from: Rank, layout: ConnLayout, buffer_bytes: Option<usize>) {
        let entry = InboxEntry { key, from, layout, offset: self.len_bytes, buffer_bytes };
        self.len_bytes += entry.len_bytes();
        self.entries.push(entry);
    }

    /// The connection with this key from that rank.
    pub fn find(&self, key: ConnKey, from: Rank) -> Option<&InboxEntry> {
        self.entries.iter().find(|entry| entry.key == key && entry.from == from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::PeerInfo;
    use proptest::prelude::*;

    const LAYOUT: ConnLayout =
        ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 256, simple_slot_bytes: 4096 };

    proptest! {
        /// Either rank of a pair puts buffers behind its connection, where the other looks for them.
        #[test]
        fn a_pair_is_one_seen_from_either_rank(hosts in proptest::collection::vec(0u64..3, 2..20)) {
            let peers: Vec<PeerInfo> =
                hosts.iter().map(|host| PeerInfo { host: *host, ..PeerInfo::default() }).collect();
            let graph = RankGraph::new(&peers, None).unwrap();
            let inbox = |rank: Rank| {
                let mesh = MeshMemory { layout: LAYOUT, buffer_bytes: 9 << 10, has_outbox: rank.0.is_multiple_of(2) };
                let is_near = |from: Rank| hosts[from.index()] == hosts[rank.index()];
                Inbox::new(&graph, hosts.len() as u32, rank, LAYOUT, mesh, is_near)
            };
            for rank in (0..hosts.len() as u32).map(Rank) {
                let own = inbox(rank);
                let mut end = 0;
                for entry in &own.entries {
                    prop_assert_eq!(entry.offset, end);
                    end += entry.len_bytes();
                    let back = inbox(entry.from);
                    let back = back.find(entry.key, rank);
                    prop_assert_eq!(entry.buffer_bytes, back.and_then(|back| back.buffer_bytes));
                    prop_assert_eq!(entry.buffer_bytes.is_some(), back.is_some());
                }
                prop_assert_eq!(own.len_bytes, end + own.outbox.map_or(0, |_| outbox_bytes(4096)));
                prop_assert_eq!(own.outbox, rank.0.is_multiple_of(2).then_some(end));
            }
        }
    }
}
