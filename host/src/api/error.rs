//! The library's errors, by operation.

use super::config::ConfigError;
use super::launcher::LaunchError;
use super::one_sided_error::OneSidedError;
use super::selection_error::SelectionError;
use super::tune_file::TuneError;
use crate::bootstrap::BootstrapError;
use crate::connect::ConnectError;
use crate::gpu::KernelError;
use crate::launch::{Fault, Outstanding};
use crate::os::Origin;
use crate::plan::tuning::Impossible;
use crate::tuner::TunerError;
use oxccl_shared::abi::{DataType, Func, Rank};
use std::fmt;
use thiserror::Error;

/// Any error of the library.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A call's arguments are invalid; nothing was sent and the communicator is unchanged.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `NCCL_ALGO` and `NCCL_PROTO` leave no candidate.
    #[error(transparent)]
    Impossible(#[from] Impossible),
    /// The tuning file cannot be used.
    #[error("OXCCL_TUNE_FILE: {0}")]
    Tune(#[from] TuneError),
    /// The tuner plugin refused to serve the communicator.
    #[error(transparent)]
    Tuner(#[from] TunerError),
    /// The launcher's environment is incomplete or wrong.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The bootstrap failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Ranks could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A running operation failed; the communicator is unusable.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A GPU failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A one-sided operation was refused; nothing was enqueued.
    #[error(transparent)]
    OneSided(#[from] OneSidedError),
    /// A call cannot have the algorithms that it was to use.
    #[error(transparent)]
    Selection(#[from] SelectionError),
}

/// An error of a rank's GPU.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("rank {rank} of {nranks}: {source}")]
pub struct DeviceError {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// The cause.
    pub source: Box<KernelError>,
}

/// Why a call was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ArgumentError {
    /// A buffer's length does not fit the call.
    #[error("{func}: the {which} buffer holds {actual} elements, {expected} were expected")]
    BufferLength {
        /// The call.
        func: Func,
        /// "send" or "receive".
        which: &'static str,
        /// Its length in elements.
        actual: usize,
        /// The length that the call needs.
        expected: usize,
    },
    /// A buffer that must divide evenly among the ranks does not.
    #[error("{func}: the {which} buffer holds {actual} elements, which {nranks} ranks cannot share evenly")]
    NotDivisible {
        /// The call.
        func: Func,
        /// "send" or "receive".
        which: &'static str,
        /// Its length in elements.
        actual: usize,
        /// Ranks of the communicator.
        nranks: u32,
    },
    /// A root or peer that the communicator does not have.
    #[error("{func}: there is no rank {rank} in a communicator of {nranks} (ranks are 0 to {})", .nranks - 1)]
    NoSuchRank {
        /// The call.
        func: Func,
        /// The rank given.
        rank: Rank,
        /// Ranks of the communicator.
        nranks: u32,
    },
    /// A null pointer to elements that are to be read or written.
    #[error("{func}: the {which} buffer is null and {count} elements are expected there")]
    NullBuffer {
        /// The call.
        func: Func,
        /// "send" or "receive".
        which: &'static str,
        /// Elements expected.
        count: usize,
    },
    /// A call that cannot run in place got one buffer for both.
    #[error("{func}: send and receive buffers are the same, which this operation does not allow")]
    InPlace {
        /// The call.
        func: Func,
    },
    /// The scalar of a pre-multiplied sum has another type than the buffers.
    #[error("{func}: the operator's scalar is {scalar}, the buffers hold {buffers}")]
    ScalarType {
        /// The call.
        func: Func,
        /// Type of the scalar.
        scalar: DataType,
        /// Type of the buffers.
        buffers: DataType,
    },
    /// An unaligned buffer: GPU kernels load whole elements.
    #[error("{func}: the {which} buffer at {address:#x} does not lie on a whole {dtype}")]
    Unaligned {
        /// The call.
        func: Func,
        /// "send" or "receive".
        which: &'static str,
        /// Its address.
        address: u64,
        /// The type of its elements.
        dtype: DataType,
    },
    /// A stream of another GPU than the communicator's.
    #[error("rank {rank}'s communicator is on GPU {device}, the stream on GPU {stream}")]
    StreamDevice {
        /// The rank.
        rank: Rank,
        /// The communicator's GPU.
        device: u32,
        /// The stream's.
        stream: u32,
    },
    /// A stream or a buffer of cudarc that belongs to another GPU, or to another context than its primary one.
    #[error(
        "rank {rank}'s communicator is on GPU {device} and its primary context, the {what} in another context, of GPU {ordinal}"
    )]
    OtherContext {
        /// The rank.
        rank: Rank,
        /// The communicator's GPU.
        device: u32,
        /// "stream", "send buffer" or "receive buffer".
        what: &'static str,
        /// The GPU that it belongs to.
        ordinal: u32,
    },
    /// Count times element size exceeds the address space.
    #[error("{func}: {count} elements of {dtype} are more than memory can hold")]
    TooLarge {
        /// The call.
        func: Func,
        /// Elements.
        count: usize,
        /// Their type.
        dtype: DataType,
    },
    /// The blocks of a v-collective fit neither ranks nor buffers.
    #[error("blocks of any length: {0}")]
    Blocks(#[from] BlocksError),
    /// A group over more communicators than one thread may drive.
    #[error("a group may hold at most {max} communicators of one thread; use several threads")]
    GroupSize {
        /// The limit.
        max: usize,
    },
    /// Memory for the stacks of a group, or of operations in flight, could not be allocated.
    #[error("no memory for the stacks of operations of {communicators} communicators (errno {errno})")]
    GroupMemory {
        /// Communicators in the group.
        communicators: usize,
        /// Why.
        errno: i32,
    },
    /// Two threads used one communicator in a group, or it was used inside its own group's end.
    #[error("rank {rank}'s communicator is already running an operation")]
    Busy {
        /// The communicator's rank.
        rank: Rank,
    },
    /// The process that uses the communicator was forked by the one that made it.
    #[error(
        "rank {rank} was created by process {made_by}, and process {used_by} is its forked child, which may only drop it: create communicators \
         after the fork, or call exec"
    )]
    Forked {
        /// The rank.
        rank: Rank,
        /// The process that made the communicator.
        made_by: u32,
        /// The process that uses it.
        used_by: u32,
    },
    /// Operations of the communicator are in flight on the thread that started them.
    #[error(
        "rank {rank}'s communicator has operations in flight on another thread, which has to wait for them first"
    )]
    OtherThread {
        /// The communicator's rank.
        rank: Rank,
    },
    /// So many operations have been started whose results have not been taken.
    #[error("rank {rank} has {max} operations in flight; wait for some first")]
    InFlight {
        /// The communicator's rank.
        rank: Rank,
        /// The limit.
        max: usize,
    },
    /// A request of another communicator.
    #[error("the request was not started by rank {rank}'s communicator")]
    OtherRequest {
        /// The communicator's rank.
        rank: Rank,
    },
}

impl ArgumentError {
    /// The use of a rank in a child of the process that made it.
    #[cold]
    pub(super) fn forked(rank: Rank, origin: &Origin) -> ArgumentError {
        ArgumentError::Forked { rank, made_by: origin.process(), used_by: std::process::id() }
    }
}

/// Why the blocks of an all-to-all-v, an all-gather-v or a reduce-scatter-v were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BlocksError {
    /// There is not one block for each rank.
    #[error("{counts} {which} counts and {displs} displacements for a communicator of {nranks} ranks")]
    Ranks {
        /// "send" or "receive".
        which: &'static str,
        /// Counts given.
        counts: usize,
        /// Displacements given.
        displs: usize,
        /// Ranks of the communicator.
        nranks: u32,
    },
    /// A block lies outside of its buffer: of untyped memory, outside of the address space.
    #[error(
        "rank {rank}'s block of the {which} buffer, {count} elements from {displ} on, exceeds its {actual} elements"
    )]
    Range {
        /// "send" or "receive".
        which: &'static str,
        /// The rank that the block goes to or comes from.
        rank: Rank,
        /// Its elements.
        count: usize,
        /// Its displacement.
        displ: usize,
        /// Elements of the buffer.
        actual: usize,
    },
    /// Two blocks overlap.
    #[error("the blocks of rank {rank} and rank {other} overlap")]
    Overlap {
        /// One rank.
        rank: Rank,
        /// The other.
        other: Rank,
    },
    /// The block of a rank to itself has two lengths.
    #[error("rank {rank} sends {sent} elements to itself and receives {received}")]
    Own {
        /// The rank.
        rank: Rank,
        /// Elements sent.
        sent: usize,
        /// Elements received.
        received: usize,
    },
    /// A null pointer to blocks that have elements.
    #[error("the {which} buffer is null and rank {rank}'s block has {count} elements")]
    Null {
        /// "send" or "receive".
        which: &'static str,
        /// The first such rank.
        rank: Rank,
        /// Its elements.
        count: usize,
    },
}

/// A running operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("rank {rank} of {nranks}: {outstanding}{}", Place(.outstanding, .place))]
pub struct OperationError {
    /// The rank that reports.
    pub rank: Rank,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// The fault and the outstanding operation.
    pub outstanding: Outstanding,
    /// The process of the rank that the fault names, if it names one, and its host.
    pub place: Option<&'static str>,
}

/// The end of a line that names a rank.
struct Place<'a>(&'a Outstanding, &'a Option<&'static str>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.fault.guilty().zip(*self.1) {
            Some((rank, place)) => write!(f, " (rank {rank} is {place})"),
            None => Ok(()),
        }
    }
}

impl OperationError {
    /// The fault.
    pub fn fault(&self) -> Fault {
        self.outstanding.fault
    }
}

impl Error {
    /// The fault, if this is an operation error.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Error::Operation(error) => Some(error.fault()),
            _ => None,
        }
    }
}
