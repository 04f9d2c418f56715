//! Errors of connections over a network, with the rank at fault.

use super::coll::CollFault;
use super::counters::{Counters, SubOp};
use super::op_header::OpHeader;
use crate::bootstrap::limit_secs;
use crate::net::NetError;
use oxccl_shared::abi::{ChannelId, Rank, Step};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A connection of this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndId {
    /// The rank at the other end.
    pub peer: Rank,
    /// The channel that it belongs to.
    pub channel: ChannelId,
    /// Whether this rank sends.
    pub is_send: bool,
}

impl fmt::Display for EndId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.is_send { "to" } else { "from" };
        write!(f, "connection {way} rank {} on channel {}", self.peer, self.channel)
    }
}

/// Why a connection has failed. The error is permanent: every later operation on it fails with it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {why}{}", outstanding.map(|was| format!(" ({was})")).unwrap_or_default())]
pub struct EndError {
    /// The connection.
    pub place: EndId,
    /// The operation in progress, if any.
    pub outstanding: Option<Outstanding>,
    /// The cause.
    pub why: EndFault,
}

/// The operation in progress on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// The sub-operation.
    pub sub: SubOp,
    /// Its first step.
    pub first: Step,
    /// Its progress.
    pub counters: Counters,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SubOp { tag, protocol, steps } = self.sub;
        write!(f, "operation {tag:#010x}, {steps} {protocol} steps from {}: {}", self.first.0, self.counters)
    }
}

/// The cause of a failure.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndFault {
    /// The network failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The ranks run different operations.
    #[error(
        "this rank is in {expected}, the other rank in {found}; do all ranks call the same in the same order?"
    )]
    Mismatch {
        /// This rank's operation.
        expected: OpHeader,
        /// The peer's operation.
        found: OpHeader,
    },
    /// The peer sent something else than an operation header.
    #[error("{len_bytes} bytes that begin no operation came where {expected} should begin")]
    NoHeader {
        /// This rank's operation.
        expected: OpHeader,
        /// Bytes received.
        len_bytes: usize,
    },
    /// The peer sent bytes that are no slot of this step.
    #[error("{len_bytes} bytes came as step {} that are no slot of it; do all ranks call the same in the same order?", step.0)]
    NoSlot {
        /// The expected step.
        step: Step,
        /// Bytes received.
        len_bytes: usize,
    },
    /// The other end made no progress for too long, though an operation had begun.
    #[error("nothing came or left for {} s", limit_secs(limit))]
    Timeout {
        /// How long it may make none.
        limit: Duration,
    },
    /// The network that reduces failed, or the heads run different operations.
    #[error("{0}")]
    Coll(CollFault),
    /// The network that reduces gave no result for too long.
    #[error("{awaited} gave no result within {} s", limit_secs(limit))]
    Unreduced {
        /// What was waited for.
        awaited: String,
        /// How long it may take.
        limit: Duration,
    },
    /// The network says that it reaches all memory, and did not move a send that was under way.
    #[error(
        "the network did not move a send whose memory is about to be written, though it says that it reaches all memory"
    )]
    NotMoved,
    /// This rank's kernel filled a slot of another operation than the proxy's order.
    #[error("this rank's kernel filled step {} for operation {found:#010x}", step.0)]
    OtherOperation {
        /// The step.
        step: Step,
        /// The tag in the slot.
        found: u32,
    },
}

impl EndFault {
    /// Whether the two ranks called different things.
    pub fn is_mismatch(&self) -> bool {
        match self {
            EndFault::Mismatch { .. }
            | EndFault::NoHeader { .. }
            | EndFault::NoSlot { .. }
            | EndFault::Coll(CollFault::Mismatch { .. })
            | EndFault::Net(NetError::OtherOperation { .. }) => true,
            EndFault::Net(_)
            | EndFault::Coll(CollFault::Net(_) | CollFault::Slot { .. })
            | EndFault::Unreduced { .. }
            | EndFault::Timeout { .. }
            | EndFault::NotMoved
            | EndFault::OtherOperation { .. } => false,
        }
    }
}

/// Why a proxy's communicator has failed: the first failure.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rank {rank}: {said}")]
pub struct ProxyFailure {
    /// This rank.
    pub rank: Rank,
    /// The failed connection, if it was one.
    pub error: Option<Arc<EndError>>,
    /// The error message.
    pub said: String,
    /// The state of every connection and the latest events: for a log, not for a single line.
    pub post_mortem: String,
}
