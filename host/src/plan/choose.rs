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
    /// Up to here, divided by n - 1, all-reduce of more than two ranks goes direct: its traffic grows with the ranks.
    pub direct_max_bytes: u64,
    /// Up to here all-reduce of two ranks goes direct: its traffic is a ring's, with one wait less and twice the reduction.
    pub pair_direct_max_bytes: u64,
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
        pair_direct_max_bytes: u64::MAX,
        ll_below_bytes: 0,
        ll128_below_bytes: 0,
        stream_min_bytes: 32 << 20,
    };

    /// For ranks on CPUs that are connected by streams only. There the operating system's work fills the time that a ring's
    /// waits leave, so that what the ranks do themselves counts: a ring reduces each element once.
    pub const CPU_STREAMS: Tuning = Tuning { pair_direct_max_bytes: 256 << 10, ..Tuning::CPU };
}

impl Facts {
    /// Along which schedule.
    pub(super) fn algorithm(&self, call: &Call) -> Algorithm {
        match (call.func, self.forced.algorithm) {
            (Func::Barrier, _) => Algorithm::Direct,
            (Func::AllReduce, Some(forced)) => forced,
            (Func::AllReduce, None) => {
                let direct_max_bytes = match self.nranks {
                    0..=2 => self.tuning.pair_direct_max_bytes,
                    n => self.tuning.direct_max_bytes / u64::from(n - 1),
                };
                if call.bytes() <= direct_max_bytes { Algorithm::Direct } else { Algorithm::Ring }
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
