//! How a connection breaks, or cannot be made, and on whose side.

use crate::bootstrap::limit_secs;
use oxccl_shared::abi::Rank;
use std::fmt;
use std::time::Duration;

/// Why a connection is dead, in words that are kept for the rest of the process, since a communicator fails but once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// A connection between two ranks failed.
    #[error("link {direction} rank {peer}: {reason}")]
    Net {
        /// The rank at the other end.
        peer: Rank,
        /// Which way the data goes.
        direction: Direction,
        /// What the network said.
        reason: &'static str,
    },
    /// A rank could not make connections that an operation needed for the first time.
    #[error("rank {rank} could not make connections that an operation needs for the first time: {reason}")]
    Connect {
        /// Which.
        rank: Rank,
        /// What stood in its way.
        reason: &'static str,
    },
    /// The network that reduces between the hosts failed.
    #[error("{reason}")]
    Coll {
        /// Its device, which head this rank is, and what the network said.
        reason: &'static str,
    },
}

impl LinkError {
    /// The rank that it names.
    pub(crate) fn peer(&self) -> Option<Rank> {
        match *self {
            LinkError::Net { peer: rank, .. } | LinkError::Connect { rank, .. } => Some(rank),
            LinkError::Coll { .. } => None,
        }
    }

    /// Every head waits for what a network that reduces owes.
    #[cold]
    pub(crate) fn unreduced(awaited: &str, limit: Duration) -> LinkError {
        let reason = format!(
            "{awaited} gave no result within {} s, and every head waits for it (raise OXCCL_TIMEOUT if it may take longer)",
            limit_secs(&limit)
        );
        LinkError::Coll { reason: Box::leak(reason.into_boxed_str()) }
    }
}

/// Which way the data of a link goes, seen from this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// This rank sends.
    To,
    /// This rank receives.
    From,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::To => "to",
            Direction::From => "from",
        })
    }
}
