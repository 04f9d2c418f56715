//! What was connected.

use super::graph::RankGraph;
use crate::launch::{Channel, CollLinks, NetLinks};
use crate::mem::Segment;
use crate::plan::Collnet;
use crate::transport::{Opener, PeerInfo, Transport, TransportKind};
use std::sync::Arc;

/// All connections.
pub struct CpuConnected {
    /// Ring and tree channels.
    pub channels: Vec<Channel>,
    /// The mesh: direct algorithms, send and receive.
    pub mesh: Channel,
    /// Index into the mesh's send connections by rank.
    pub send_to: Vec<u16>,
    /// Index into the mesh's receive connections by rank.
    pub recv_from: Vec<u16>,
    /// The connections over a network, if there are any.
    pub net_links: Option<NetLinks>,
    /// What makes more of them when operations need them.
    pub opener: Option<(&'static dyn Transport, Box<dyn Opener>)>,
    /// In-network reduction, or why there is none.
    pub reducing: Reducing,
    /// The transport to each peer; this rank's own entry is unused.
    pub kinds: Vec<TransportKind>,
    /// All ranks' peer info.
    pub peers: Vec<PeerInfo>,
    /// The rings and trees.
    pub graph: RankGraph,
    /// Bytes of connections from each rank, in this rank's memory.
    pub inbound_bytes: Vec<usize>,
    /// Bytes of this rank's outbox.
    pub outbox_bytes: usize,
    /// Bytes of connections to each rank, in this rank's memory.
    pub outbound_bytes: Vec<usize>,
    /// Keeps the connections' memory mapped.
    pub memory: Vec<Arc<Segment>>,
}

/// A communicator's in-network reduction.
pub struct Reducing {
    /// What it supports, or why there is none.
    pub collnet: Collnet,
    /// The reason of the head without one, if there is one.
    pub lack: String,
    /// This rank's end, if it is a head.
    pub links: Option<CollLinks>,
    /// Bytes of its connections, in this rank's memory.
    pub bytes: usize,
    /// Channel indices in the mesh: to the network and from it.
    pub(super) places: [u16; 2],
}

impl Default for Reducing {
    fn default() -> Reducing {
        Reducing { collnet: Collnet::Disabled, lack: String::new(), links: None, bytes: 0, places: [0; 2] }
    }
}

impl Reducing {
    /// Where the connections to the network begin among the mesh's, at a head.
    pub(super) fn places(&self) -> Option<[u16; 2]> {
        self.links.as_ref().map(|_| self.places)
    }
}
