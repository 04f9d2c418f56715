//! What a rank on a GPU knows of its kernels.

use core::fmt;
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

/// A rank's kernels, as far as they say what they do: they do once they have waited for about half a millisecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Kernels {
    /// What has been waited for longest; none where no kernel waits.
    pub waits: Option<KernelAt>,
    /// Whether calls were captured into graphs, whose launches nobody counts.
    pub has_graphs: bool,
}

/// Where a kernel waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelAt {
    /// For whom.
    pub peer: Rank,
    /// Whether for an empty slot; otherwise for a full one.
    pub is_credit: bool,
    /// The step of the connection: so many slots have gone over it since the communicator was made.
    pub step: u64,
    /// The kernel's block: of a collective, the channel.
    pub block: u32,
    /// The number of the kernel's launch among the rank's calls.
    pub launch: u64,
}

impl fmt::Display for KernelAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelAt { peer, is_credit, step, block, .. } = self;
        let what = if *is_credit { "has made no room for" } else { "has not sent" };
        write!(f, "rank {peer} {what} step {step} (block {block})")
    }
}
