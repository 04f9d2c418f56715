//! Which algorithm and protocol: a table of thresholds measured on CPUs, and the user's overrides.

use super::call::Call;
use oxccl_shared::abi::{Algorithm, ConnLayout, Func, Protocol};

/// What a communicator knows after init; equal on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Ranks.
    pub nranks: u32,
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
    /// Up to here, divided by n - 1, all-reduce of more than two ranks goes direct: its traffic grows with the ranks. Between two
    /// ranks it is a ring's, with one wait less.
    pub direct_max_bytes: u64,
    /// Below this LL.
    pub ll_below_bytes: u64,
    /// Below this LL128; Simple from here on.
    pub ll128_below_bytes: u64,
    /// From here on outputs bypass the caches, unless they are inputs too. About the size of a last-level cache.
    pub stream_min_bytes: u64,
}

impl Tuning {
    /// For ranks on CPUs. Their caches are coherent: a counter and the data it publishes arrive together as fast as a line that
    /// carries its own flag, so the line protocols, made for links without that, win at no size.
    pub const CPU: Tuning = Tuning {
        direct_max_bytes: 128 << 10,
        ll_below_bytes: 0,
        ll128_below_bytes: 0,
        stream_min_bytes: 32 << 20,
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
                if self.nranks <= 2 || call.bytes() <= self.tuning.direct_max_bytes / others {
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
            None if bytes < self.tuning.ll_below_bytes => Protocol::LL,
            None if bytes < self.tuning.ll128_below_bytes => Protocol::LL128,
            None => Protocol::Simple,
        }
    }
}
