//! Why ranks cannot be connected.

use super::gpu::SurveyError;
use crate::bootstrap::BootstrapError;
use crate::gpu::bundle::BundleError;
use crate::gpu::{CudaError, DeviceId};
use crate::mem::MemError;
use crate::net::NetError;
use crate::topology::JoinError;
use crate::transport::p2p::P2pError;
use crate::transport::{RefusedNet, TransportError};
use oxccl_shared::abi::Rank;
use thiserror::Error;

/// Why ranks cannot be connected.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConnectError {
    /// No transport that the user allows reaches a peer.
    #[error("no allowed transport connects rank {rank} and rank {peer} ({why})")]
    NoTransport {
        /// This rank.
        rank: Rank,
        /// The peer.
        peer: Rank,
        /// The reason.
        why: &'static str,
    },
    /// A peer has other settings.
    #[error("rank {peer} has other settings than rank 0: {settings}; set them alike on all ranks")]
    Settings {
        /// The first peer that differs from rank 0.
        peer: Rank,
        /// Which, and what both have.
        settings: String,
    },
    /// One rank encrypts its data, another does not.
    #[error(
        "rank {peer} has OXCCL_ENCRYPT={} and rank 0 has not: set it alike on all ranks",
        u8::from(*there)
    )]
    Encryption {
        /// The first peer that differs from rank 0.
        peer: Rank,
        /// Whether it encrypts.
        there: bool,
    },
    /// A rank lacks an algorithm that another has registered.
    #[error(
        "rank {peer} has not registered the algorithm '{name}' (version {version}) with the same kernels as rank {rank}"
    )]
    Algorithm {
        /// Who lacks it.
        peer: Rank,
        /// Who has it.
        rank: Rank,
        /// Its name.
        name: String,
        /// Its version.
        version: u32,
    },
    /// Memory could not be allocated.
    #[error("rank {rank}: {source}")]
    Memory {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: MemError,
    },
    /// A connection over a network could not be made.
    #[error("rank {rank}{}: {source}", peer.map(|peer| format!(" and rank {peer}")).unwrap_or_default())]
    Net {
        /// This rank.
        rank: Rank,
        /// The rank at the other end, if one is involved.
        peer: Option<Rank>,
        /// The cause.
        source: Box<NetError>,
    },
    /// Another rank could not create its connections; it reports the details itself.
    #[error("rank {peer} could not make its connections: {why}")]
    PeerFailed {
        /// The first rank that failed.
        peer: Rank,
        /// Its error.
        why: String,
    },
    /// A peer's message at init is not one of this library's.
    #[error("rank {peer} sent a malformed description of itself; do all ranks run the same OxCCL?")]
    Malformed {
        /// The peer.
        peer: Rank,
    },
    /// The ranks' hosts do not form rings and trees.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The bootstrap failed meanwhile.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// This rank's GPU is unusable.
    #[error("rank {rank}: {source}")]
    Device {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: Box<CudaError>,
    },
    /// There are no kernels for this rank's GPU.
    #[error("rank {rank}: {source}")]
    Kernels {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: Box<BundleError>,
    },
    /// The topology survey failed.
    #[error(transparent)]
    Survey(#[from] Box<SurveyError>),
    /// GPUs cannot access each other's memory.
    #[error(transparent)]
    P2p(#[from] Box<P2pError>),
    /// Two ranks use one GPU.
    #[error(
        "ranks {rank} and {peer} were both given {device}: every rank needs a GPU of its own, except in tests with OXCCL_DUPLICATE_GPUS=1 on all ranks"
    )]
    SameDevice {
        /// The lower rank.
        rank: Rank,
        /// The higher rank.
        peer: Rank,
        /// The GPU.
        device: DeviceId,
    },
}

impl ConnectError {
    /// What a transport of this rank said.
    pub(in crate::connect) fn of_transport(rank: Rank, error: TransportError) -> ConnectError {
        match error {
            TransportError::Memory(source) => ConnectError::Memory { rank, source },
            TransportError::Gone { peer } => {
                ConnectError::PeerFailed { peer, why: "its memory is gone".to_owned() }
            }
            // The peer is a thread of this process, and its memory not what the plan says: one of them runs other code.
            TransportError::Length { peer, .. } | TransportError::Malformed { peer } => {
                ConnectError::Malformed { peer }
            }
            TransportError::Net(refused) => {
                let RefusedNet { peer, source } = *refused;
                ConnectError::Net { rank, peer, source: Box::new(source) }
            }
            TransportError::Bootstrap(error) => ConnectError::Bootstrap(error),
        }
    }
}

impl From<SurveyError> for ConnectError {
    fn from(error: SurveyError) -> ConnectError {
        ConnectError::Survey(Box::new(error))
    }
}
