//! What every transport offers.
//!
//! ```text
//! connects   may it connect these two ranks, and do they reach each other by it?
//! memory     what it needs: an inbox at the consumer, or two halves with something between
//! show       its inbox to the ranks that will write there      -- all ranks of the communicator have come so far --
//! open       a peer's inbox                                    -- and so far --
//! connect    two halves
//! opener     halves that an operation needs later
//! ```
//! Who drives what lies between two halves is decided above: `launch` and `proxy` know operations.

use super::kind::{Allowed, TransportKind};
use super::peer::PeerInfo;
use crate::bootstrap::{Bootstrap, BootstrapError, Reach};
use crate::mem::{MemError, Segment, ShmName};
use crate::net::{Locality, NetConfig, NetError, RecvComm, SendComm};
use oxccl_shared::abi::{ConnLayout, Rank};
use std::sync::Arc;
use std::time::Duration;

pub(super) mod sealed {
    /// Nobody else's: what is in memory must be as kernels want it.
    pub trait Sealed {}
}

/// Where the connections of a transport lie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Memory {
    /// In two halves in private memory, one at each end.
    Halves,
    /// In the consumer's inbox, which all of its process reach.
    Process,
    /// In the consumer's inbox, a file that all of its host map.
    File,
}

/// Names the inbox of a rank of a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InboxName {
    /// Identifies the communicator.
    pub comm_hash: u64,
    /// The rank.
    pub rank: Rank,
    /// The rank's [`PeerInfo::files`].
    pub told: u64,
}

impl InboxName {
    /// The inbox's file, where it has one.
    pub fn file(&self) -> ShmName {
        ShmName::of(self.told, self.comm_hash, self.rank)
    }
}

/// A way from one rank to another.
pub trait Transport: sealed::Sealed + Sync {
    /// Which it is.
    fn kind(&self) -> TransportKind;

    /// Whether the user allows it and it leads from one of these ranks to the other: symmetric, so that both ends choose alike.
    fn connects(&self, allowed: &Allowed, a: &PeerInfo, b: &PeerInfo) -> bool;

    /// What its connections lie in.
    fn memory(&self) -> Memory;

    /// Its slots, where those of a connection in memory are as `memory` says.
    fn layout(&self, memory: ConnLayout) -> ConnLayout {
        memory
    }

    /// Shows this rank's inbox to those that will open it.
    ///
    /// # Errors
    /// What the memory says.
    fn show(&self, _inbox: InboxName, _segment: &Arc<Segment>) -> Result<(), MemError> {
        Ok(())
    }

    /// Maps a peer's inbox, which it has shown; none where connections lie in halves.
    ///
    /// # Errors
    /// It is not there, or not of this length.
    fn open(&self, _inbox: InboxName, _len_bytes: usize) -> Result<Option<Arc<Segment>>, TransportError> {
        Ok(None)
    }

    /// Connects halves; none where connections lie in inboxes. Every rank calls it at the same time.
    ///
    /// # Errors
    /// A connection could not be made.
    fn connect(&self, _asked: &Asked<'_>) -> Result<Wires, TransportError> {
        Ok(Wires::None)
    }

    /// Connects halves when an operation needs them; none where connections lie in inboxes.
    ///
    /// # Errors
    /// There is no network.
    fn opener(&self, _by: OpenBy<'_>) -> Result<Option<Box<dyn Opener>>, TransportError> {
        Ok(None)
    }
}

/// What an [`Opener`] is made of.
pub struct OpenBy<'a> {
    /// Reaches single ranks.
    pub reach: Reach,
    /// Where a network is to be found.
    pub net: &'a NetConfig,
    /// Where this rank is, seen from devices.
    pub place: Locality,
}

/// Connects halves one by one, while operations run. Nobody is waited for: each end asks for its communicator until it is there, and the two
/// ends may begin at any time.
pub trait Opener: Send {
    /// Begins the ends of these connections, in this order; each name once in a communicator's life.
    ///
    /// # Errors
    /// This rank cannot.
    fn open(&self, to: &[Asking], from: &[Asking]) -> Result<Openings, TransportError>;
}

/// A communicator that comes: asked again and again, it is given once.
pub type Opening<C> = Box<dyn FnMut() -> Result<Option<C>, TransportError> + Send>;

/// Communicators that come, in the order of what was asked.
pub struct Openings {
    /// To consumers.
    pub to: Vec<Opening<Box<dyn SendComm>>>,
    /// From producers.
    pub from: Vec<Opening<Box<dyn RecvComm>>>,
}

/// One end of a connection to be made: its name, which both ends know, and the rank at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asking {
    /// The number of the connection between the two ranks in this direction.
    pub tag: u64,
    /// The rank at the other end.
    pub peer: Rank,
}

/// Connections between halves that one rank needs, in the order in which both ends have them.
pub struct Asked<'a> {
    /// Reaches all.
    pub bootstrap: &'a Bootstrap,
    /// To consumers.
    pub to: &'a [Asking],
    /// From producers.
    pub from: &'a [Asking],
    /// Where a network is to be found.
    pub net: &'a NetConfig,
    /// Where this rank is, seen from devices.
    pub place: Locality,
    /// How long it may take.
    pub timeout: Duration,
}

/// What lies between the halves, in the order of what was asked.
pub enum Wires {
    /// Nothing.
    None,
    /// A network's communicator for each connection.
    Comms {
        /// To consumers.
        to: Vec<Box<dyn SendComm>>,
        /// From producers.
        from: Vec<Box<dyn RecvComm>>,
    },
}

/// Why a transport could not connect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransportError {
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// A peer of this process has left.
    #[error("the memory of rank {peer} is gone")]
    Gone {
        /// The peer.
        peer: Rank,
    },
    /// A peer's memory is shorter than its connections need.
    #[error("the memory of rank {peer} has {found_bytes} bytes, expected {expected_bytes}")]
    Length {
        /// The peer.
        peer: Rank,
        /// What its connections need.
        expected_bytes: usize,
        /// What it has.
        found_bytes: usize,
    },
    /// A peer's message is not one of this library's.
    #[error("rank {peer} sent a malformed message")]
    Malformed {
        /// The peer.
        peer: Rank,
    },
    /// The network.
    #[error(transparent)]
    Net(Box<RefusedNet>),
    /// The bootstrap failed meanwhile.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

impl TransportError {
    /// A network's refusal, of the connection with this peer if it is one's.
    pub(crate) fn of_net(peer: Option<Rank>, source: NetError) -> TransportError {
        TransportError::Net(Box::new(RefusedNet { peer, source }))
    }

    /// As a network says it.
    pub(crate) fn into_net(self) -> NetError {
        match self {
            TransportError::Net(refused) => refused.source,
            error => NetError::of_call("network", "connect", error.to_string()),
        }
    }
}

/// What a network said, and of which connection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{source}")]
pub struct RefusedNet {
    /// The rank at the other end, if one is involved.
    pub peer: Option<Rank>,
    /// Why.
    pub source: NetError,
}
