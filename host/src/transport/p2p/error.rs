//! Why an arena cannot be set up.

use super::allocation::AllocationKind;
use super::descriptors::PassError;
use crate::bootstrap::BootstrapError;
use crate::gpu::{CudaError, DeviceId};
use crate::mem::MemError;
use oxccl_shared::abi::Rank;
use thiserror::Error;

/// Why ranks of a host cannot access each other's memory. Raised where connections are made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum P2pError {
    /// An error of this rank's device that concerns no peer.
    #[error("rank {rank}: {source}")]
    Device {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: CudaError,
    },
    /// Host memory could not be allocated or opened.
    #[error("rank {rank}, for the memory of rank {owner}: {source}")]
    Memory {
        /// This rank.
        rank: Rank,
        /// The rank whose memory it is.
        owner: Rank,
        /// The cause.
        source: MemError,
    },
    /// A peer's memory could not be mapped.
    #[error(
        "rank {rank} on {device} cannot map the memory of rank {peer} on that rank's {peer_device}, which is {kind}: {source}"
    )]
    Map {
        /// This rank.
        rank: Rank,
        /// Its device.
        device: DeviceId,
        /// The rank whose memory it is.
        peer: Rank,
        /// Its device, as that rank numbers it.
        peer_device: DeviceId,
        /// Its kind.
        kind: AllocationKind,
        /// The cause.
        source: CudaError,
    },
    /// Memory descriptors could not be exchanged with the other processes of the host.
    #[error("rank {rank}: {source}")]
    Pass {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: PassError,
    },
    /// A peer's memory has another length than this rank computed for it.
    #[error(
        "rank {peer} made {found} bytes of memory, rank {rank} expected {expected}; do all ranks have the same settings?"
    )]
    Length {
        /// This rank.
        rank: Rank,
        /// The rank whose memory it is.
        peer: Rank,
        /// Bytes that this rank expected.
        expected: u64,
        /// Its actual length.
        found: u64,
    },
    /// A peer in this process freed its memory before it could be used.
    #[error("rank {rank}: the memory of rank {peer}, of the same process, is gone")]
    Gone {
        /// This rank.
        rank: Rank,
        /// The rank whose memory it was.
        peer: Rank,
    },
    /// A peer's message is not one of this library's.
    #[error("rank {peer} sent a malformed description of its GPU memory; do all ranks run the same OxCCL?")]
    Malformed {
        /// The peer.
        peer: Rank,
    },
    /// Another rank failed; it reports the details itself.
    #[error("rank {peer} could not share GPU memory: {why}")]
    PeerFailed {
        /// The first rank that failed.
        peer: Rank,
        /// Its error.
        why: String,
    },
    /// The bootstrap failed meanwhile.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

impl P2pError {
    /// Whether another method may succeed. Memory exhaustion must not silently select a slower method, and a broken
    /// context or a peer of another version does not improve.
    pub(super) fn allows_retry(&self) -> bool {
        match self {
            P2pError::Map { source, .. } | P2pError::Device { source, .. } => {
                matches!(source, CudaError::Call { .. })
            }
            P2pError::Pass { .. } => true,
            _ => false,
        }
    }

    /// Whether this rank aborts at once: no other method helps, and the other ranks do not know yet.
    pub(super) fn ends_init(&self) -> bool {
        !self.allows_retry() && !matches!(self, P2pError::Bootstrap(_) | P2pError::PeerFailed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{CuResult, MemoryKind, PciBus};
    use oxccl_shared::abi::Rank;

    fn device(ordinal: u32) -> DeviceId {
        DeviceId { ordinal, bus: PciBus { domain: 0, bus: 0x10 + ordinal as u8, device: 0 } }
    }

    #[test]
    fn a_failed_mapping_names_both_ranks_both_devices_and_the_cause() {
        let result = CuResult { code: 217, name: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" };
        let source = CudaError::Call { device: device(1), operation: "cuMemSetAccess", result };
        let error = P2pError::Map {
            rank: Rank(5),
            device: device(1),
            peer: Rank(4),
            peer_device: device(0),
            kind: AllocationKind::Shareable,
            source,
        };
        let said = error.to_string();
        for part in [
            "rank 5 on GPU 1 (0000:11:00.0)",
            "rank 4 on that rank's GPU 0 (0000:10:00.0)",
            "device memory (cuMem)",
            "cuMemSetAccess",
            "NCCL_P2P_DISABLE=1",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(error.allows_retry());
    }

    #[test]
    fn exhausted_memory_is_final() {
        let kind = MemoryKind::Device;
        let source = CudaError::OutOfMemory {
            device: device(0),
            kind,
            wanted_bytes: 1,
            free_bytes: 0,
            total_bytes: 2,
        };
        let error = P2pError::Device { rank: Rank(0), source };
        assert!(!error.allows_retry() && error.ends_init());
        let lost = BootstrapError::PeerAborted { rank: Rank(1), reason: String::new() };
        assert!(!P2pError::Bootstrap(lost).ends_init());
        assert!(!P2pError::Pass { rank: Rank(0), source: PassError::GivenUp }.ends_init());
    }
}
