//! Signals between two ranks, and why a one-sided operation is refused.

use oxccl_shared::abi::Rank;
use thiserror::Error;

/// Signals of one kind between two ranks: the other rank, and a number below [`Signal::KINDS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// The rank that is signalled, or waited for.
    pub peer: u32,
    /// Which of the signals between the two.
    pub kind: u32,
}

impl Signal {
    /// Kinds of signals between two ranks, in each direction.
    pub const KINDS: u32 = 256;
}

/// Why a one-sided operation was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum OneSidedError {
    /// No window was registered, and signals were not connected.
    #[error(
        "rank {rank}'s communicator has no signals yet: every rank registers a window or connects signals first"
    )]
    NotConnected {
        /// The rank.
        rank: Rank,
    },
    /// There is no such rank.
    #[error("there is no rank {peer} in a communicator of {nranks} (ranks are 0 to {})", .nranks - 1)]
    NoSuchRank {
        /// The rank given.
        peer: u32,
        /// Ranks of the communicator.
        nranks: u32,
    },
    /// There is no such signal.
    #[error("there is no signal {kind}: signals are 0 to {}", Signal::KINDS - 1)]
    NoSuchSignal {
        /// The number given.
        kind: u32,
    },
    /// The rank is on another host.
    #[error(
        "rank {peer} is on another host than rank {rank}: one-sided operations are within a host, send and receive go further"
    )]
    OtherHost {
        /// This rank.
        rank: Rank,
        /// The other.
        peer: Rank,
    },
    /// The rank's part of the window cannot be mapped.
    #[error("rank {rank} cannot reach rank {peer}'s part of the window: {why}")]
    Unreachable {
        /// This rank.
        rank: Rank,
        /// The other.
        peer: Rank,
        /// Why.
        why: String,
    },
    /// The data would end outside of the window.
    #[error("{len_bytes} bytes from {offset} on exceed the window of rank {peer}, which has {window_bytes}")]
    OutOfBounds {
        /// The rank whose window it is.
        peer: Rank,
        /// Bytes of the data.
        len_bytes: u64,
        /// Where they would begin.
        offset: u64,
        /// Bytes of its window.
        window_bytes: u64,
    },
    /// Ranks registered parts of different lengths as one symmetric window.
    #[error(
        "a symmetric window has the same length on every rank, but rank {peer}'s part has {theirs} bytes, and rank {rank}'s {mine}"
    )]
    Unsymmetric {
        /// This rank.
        rank: Rank,
        /// Bytes of its part.
        mine: u64,
        /// The other.
        peer: Rank,
        /// Bytes of its part.
        theirs: u64,
    },
    /// The stream is being captured.
    #[error(
        "one-sided operations cannot be captured into a graph: each signal has a number of its own, which a replay would repeat"
    )]
    Capturing,
}
