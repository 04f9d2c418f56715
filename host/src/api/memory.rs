//! Memory use of a communicator.

use oxccl_shared::abi::Rank;
use std::fmt;

/// How to ask for a communicator's memory use.
pub(super) type MemoryUse = Box<dyn Fn() -> MemoryReport + Send + Sync>;

/// Memory reserved for one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerMemory {
    /// The peer.
    pub rank: Rank,
    /// The transport that reaches it.
    pub transport: crate::transport::TransportKind,
    /// Bytes of connections from it, in this rank's memory.
    pub inbound_bytes: usize,
    /// Bytes of connections to it in this rank's memory (streams only; otherwise the peer's memory holds them).
    pub outbound_bytes: usize,
}

/// Memory that a communicator has now. The operating system commits what ranks on CPUs reserve at first use, except files in
/// /dev/shm, which are committed at once. GPUs of one host, and ranks on CPUs over networks, make connections when an operation first
/// needs them, and keep them: their memory grows with what the communicator is used for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// Each peer's share.
    pub peers: Vec<PeerMemory>,
    /// Bytes that belong to no peer: on GPUs the tables of connections for kernels, and what fills the driver's pages; at a head on CPUs
    /// the connections of in-network reduction.
    pub own_bytes: usize,
}

impl MemoryReport {
    /// Total bytes of this rank.
    pub fn total_bytes(&self) -> usize {
        self.peers.iter().map(|peer| peer.inbound_bytes + peer.outbound_bytes).sum::<usize>() + self.own_bytes
    }

    /// Bytes of the most expensive peer.
    pub fn per_peer_bytes_max(&self) -> usize {
        self.peers.iter().map(|peer| peer.inbound_bytes + peer.outbound_bytes).max().unwrap_or(0)
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "{:.2} MiB per communicator, at most {:.2} MiB per peer",
            mib(self.total_bytes()),
            mib(self.per_peer_bytes_max())
        )
    }
}
