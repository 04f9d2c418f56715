//! How a connection over a network fails, and whose fault it is.

use super::counters::{Counters, SubOp};
use super::prologue::Prologue;
use crate::net::NetError;
use oxccl_shared::abi::{ChannelId, Rank, Step};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Which connection of this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The rank at the other end.
    pub peer: Rank,
    /// The channel that it belongs to.
    pub channel: ChannelId,
    /// Whether this rank sends.
    pub is_send: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.is_send { "to" } else { "from" };
        write!(f, "connection {way} rank {} on channel {}", self.peer, self.channel)
    }
}

/// Why a connection is dead. It stays so: every later operation on it fails alike.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {why}{}", outstanding.map(|was| format!(" ({was})")).unwrap_or_default())]
pub struct EndError {
    /// Which.
    pub place: Place,
    /// What was under way, if anything.
    pub outstanding: Option<Outstanding>,
    /// What happened.
    pub why: EndFault,
}

/// What a connection was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// The sub-operation.
    pub sub: SubOp,
    /// Its first step.
    pub first: Step,
    /// How far it was.
    pub counters: Counters,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SubOp { tag, protocol, steps } = self.sub;
        write!(f, "operation {tag:#010x}, {steps} {protocol} steps from {}: {}", self.first.0, self.counters)
    }
}

/// What happened to a connection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndFault {
    /// The network failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The ranks do not do the same.
    #[error(
        "this rank is in {expected}, the other rank in {found}; do all ranks call the same in the same order?"
    )]
    Mismatch {
        /// What this rank does.
        expected: Prologue,
        /// What the other does.
        found: Prologue,
    },
    /// The peer sent something else than the beginning of an operation.
    #[error("{len_bytes} bytes that begin no operation came where {expected} should begin")]
    NoPrologue {
        /// What this rank does.
        expected: Prologue,
        /// Bytes that came.
        len_bytes: usize,
    },
    /// The peer sent bytes that are no slot of this step.
    #[error("{len_bytes} bytes came as step {} that are no slot of it; do all ranks call the same in the same order?", step.0)]
    NoSlot {
        /// The step that was to come.
        step: Step,
        /// Bytes that came.
        len_bytes: usize,
    },
    /// The other end did nothing for too long, though an operation had begun.
    #[error("nothing came or left for {:.1} s", waited.as_secs_f64())]
    Timeout {
        /// For so long.
        waited: Duration,
    },
    /// An operation of this rank was given up while its memory was lent.
    #[error("an operation was given up in the middle")]
    Unfinished,
    /// This rank's kernel filled a slot for another operation than the proxy was told of.
    #[error("this rank's kernel filled step {} for operation {found:#010x}", step.0)]
    OtherOperation {
        /// The step.
        step: Step,
        /// The tag in the slot.
        found: u32,
    },
}

/// Why a proxy's communicator cannot go on. The first failure stays.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rank {rank}: {said}")]
pub struct ProxyFailure {
    /// This rank.
    pub rank: Rank,
    /// The connection that failed, if it was one.
    pub error: Option<Arc<EndError>>,
    /// What happened, in words.
    pub said: String,
    /// What every connection was doing, and what had happened lately: for a log, not for a line.
    pub post_mortem: String,
}
