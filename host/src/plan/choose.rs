//! Which algorithm and protocol: a table of thresholds measured on CPUs, and the user's overrides.

use super::call::Call;
use oxccl_shared::abi::{Algorithm, ConnLayout, Func, Protocol};

/// What a communicator knows after init; equal on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Ranks.
    pub nranks: u32,
    /// Whether some pair of ranks is connected by a network.
    pub over_network: bool,
    /// Slot sizes of ring and tree connections.
    pub ring_layout: ConnLayout,
    /// Slot sizes of mesh connections (direct, send and receive).
    pub mesh_layout: ConnLayout,
    /// Channels that rings use.
    pub ring_channels: u32,
    /// Channels that trees use.
    pub tree_channels: u32,
    /// The user's overrides.
    pub forced: Forced,
    /// Thresholds.
    pub tuning: Tuning,
}

/// What the user insists on (`NCCL_ALGO`, `NCCL_PROTO`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forced {
    /// Use this algorithm wherever the function has it.
    pub algorithm: Option<Algorithm>,
    /// Use this protocol.
    pub protocol: Option<Protocol>,
}

/// Thresholds in bytes of a call (its `count` times the element size). See docs/measurements for where they come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Up to here all-reduce goes direct, times 1/(n - 1): its traffic grows with the ranks.
    pub direct_max_bytes: u64,
    /// Up to here LL.
    pub ll_max_bytes: u64,
    /// Up to here LL128; Simple above.
    pub ll128_max_bytes: u64,
    /// From here on outputs bypass the caches.
    pub stream_min_bytes: u64,
}

impl Tuning {
    /// For ranks that share processors: a line protocol makes a rank wait, and so hand over the processor, in mid-slot.
    pub const CROWDED: Tuning = Tuning { ll_max_bytes: 256, ll128_max_bytes: 256, ..Tuning::CPU };
    /// For ranks on processors of their own.
    pub const CPU: Tuning = Tuning {
        direct_max_bytes: 16 << 10,
        ll_max_bytes: 512,
        ll128_max_bytes: 16 << 10,
        stream_min_bytes: 4 << 20,
    };
}

impl Facts {
    /// Along which schedule.
    pub(super) fn algorithm(&self, call: &Call) -> Algorithm {
        match (call.func, self.forced.algorithm) {
            (Func::Barrier, _) => Algorithm::Direct,
            (Func::AllReduce, Some(forced)) => forced,
            (Func::AllReduce, None) => {
                let others = u64::from(self.nranks.saturating_sub(1)).max(1);
                if call.bytes() <= self.tuning.direct_max_bytes / others {
                    Algorithm::Direct
                } else {
                    Algorithm::Ring
                }
            }
            _ => Algorithm::Ring,
        }
    }

    /// Over which line format, for messages of `bytes` between two ranks.
    pub(crate) fn protocol(&self, bytes: u64) -> Protocol {
        match self.forced.protocol {
            Some(forced) => forced,
            // A message on a network is a system call, so line formats only cost.
            None if self.over_network => Protocol::Simple,
            None if bytes <= self.tuning.ll_max_bytes => Protocol::LL,
            None if bytes <= self.tuning.ll128_max_bytes => Protocol::LL128,
            None => Protocol::Simple,
        }
    }
}
