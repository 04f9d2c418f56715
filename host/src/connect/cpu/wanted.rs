//! What to connect.

use crate::connect::Setting;
use crate::net::NetConfig;
use crate::transport::{Allowed, InboxName, PeerInfo};
use oxccl_shared::abi::{ConnLayout, Rank};
use std::time::Duration;

/// What to connect.
#[derive(Clone, Copy, Debug)]
pub struct CpuWanted<'a> {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub nranks: u32,
    /// Identifies the communicator's memory.
    pub comm_hash: u64,
    /// This process.
    pub info: &'a PeerInfo,
    /// The user's settings.
    pub allowed: &'a Allowed,
    /// Those in the digest `info.settings`.
    pub settings: &'a [Setting],
    /// The user's rings, if any; each names every rank once.
    pub rings: Option<&'a [Vec<Rank>]>,
    /// The settings of networks.
    pub net: &'a NetConfig,
    /// Timeout for connections over a network.
    pub net_timeout: Duration,
    /// Slots of ring and tree connections.
    pub ring_layout: ConnLayout,
    /// Slots of mesh connections.
    pub mesh_layout: ConnLayout,
    /// Length of the buffers that pairs hand to and fro on them.
    pub mesh_buffer_bytes: usize,
    /// From which length on messages are read from the sender's memory, where the ranks share a host; never where there is none. The
    /// second where they share processors too.
    pub read_from_bytes: Option<[usize; 2]>,
    /// Whether this rank sends in the buffers that pairs hand to and fro.
    pub ping_pong: bool,
    /// Whether ranks have outboxes; `None`: where that is faster.
    pub outbox: Option<bool>,
    /// Whether connections over a network are made when operations need them, but for rings.
    pub by_need: bool,
}

impl CpuWanted<'_> {
    /// The name of a rank's inbox.
    pub(super) fn inbox_name(&self, peers: &[PeerInfo], rank: Rank) -> InboxName {
        InboxName { comm_hash: self.comm_hash, rank, told: peers[rank.index()].files }
    }
}
