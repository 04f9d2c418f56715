//! What a network that reduces offers: the shape of NCCL's CollNet plugin table (`ncclCollNet_v12_t`), with ownership in the types.
//!
//! One rank of every host takes part, its *head*. All heads hand in their buffers; the network gives each the reduction of all.
//!
//! ```text
//! every head
//! listen -> NetHandle ~~ bootstrap, to all heads ~~> join(all handles, which one is ours)
//! poll_join -> CollComm
//! register, iallreduce (or iallgather, ireduce_scatter), test
//! ```
//! Nothing here waits: what cannot be done now answers `None` and is asked again. Once a communicator exists, operations and `test`
//! neither allocate nor lock on this side of a plugin's table.
//!
//! Operations are matched by their order: the k-th of every head is one operation, which all begin with the same count, type and
//! operator. A network need not notice if they do not; whoever calls makes sure.

use crate::net::{Comm, NetError, NetHandle, NetProperties, Registration, Request};
use core::fmt;
use oxccl_shared::abi::{DataType, RedOp};

/// A network that reduces.
pub trait CollNet: Send + Sync + fmt::Debug {
    /// What it calls itself.
    fn name(&self) -> &str;

    /// How many devices it found; they are numbered from 0. None is not an error: the network is then not used.
    fn devices(&self) -> u32;

    /// What `device` is; its `message_max_bytes` are those of one operation's buffer.
    ///
    /// # Errors
    /// [`NetError::NoDevice`].
    fn properties(&self, device: u32) -> Result<NetProperties, NetError>;

    /// Whether it reduces such elements by such an operator: one of sum, product, maximum and minimum. The rest is made of these by
    /// who calls.
    ///
    /// # Errors
    /// What the network said.
    fn reduces(&self, dtype: DataType, op: RedOp) -> Result<bool, NetError>;

    /// Something for the other heads to find `device` by, for one communicator.
    ///
    /// # Errors
    /// [`NetError::NoDevice`], or what the device said.
    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn CollListener>), NetError>;
}

/// Which of the heads this one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its number, the place of its handle among all.
    pub index: u32,
    /// How many heads there are.
    pub count: u32,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "head {} of {}", self.index, self.count)
    }
}

/// A head that the others may find; closed when dropped.
pub trait CollListener: Send {
    /// Begins to bring all heads together. Their handles are in the same order on all; that of this listener is at `index`.
    ///
    /// # Errors
    /// There is no handle at `index`, or what the device said.
    fn join(self: Box<Self>, handles: &[NetHandle], index: u32) -> Result<Box<dyn CollConnector>, NetError>;
}

/// A communicator being made; given up when dropped.
pub trait CollConnector: Send {
    /// The communicator, once all heads have come together.
    ///
    /// # Errors
    /// They cannot. No later call succeeds.
    fn poll_join(&mut self) -> Result<Option<Box<dyn CollComm>>, NetError>;
}

/// Registered memory that an operation reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct CollPart {
    /// Its first byte.
    pub start: *mut u8,
    /// What it belongs to.
    pub registration: Registration,
}

/// How elements are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// How many, of each head.
    pub count: usize,
    /// Of which type.
    pub dtype: DataType,
    /// How: one of those that [`CollNet::reduces`] may be asked for.
    pub op: RedOp,
}

impl Reduction {
    /// Bytes of one head's elements.
    pub fn len_bytes(&self) -> usize {
        self.count * self.dtype.size_bytes()
    }
}

/// One head among all. Dropping it ends the communicator, operations under way included.
///
/// An operation answers `None` where it cannot begin now, for example because [`crate::net::REQUESTS_MAX`] are under way. It is done
/// when its output is there and its input is needed no longer; `test` says how many bytes the output has.
pub trait CollComm: Comm {
    /// Begins to reduce all heads' `send` into every head's `recv`, which may be the same memory.
    ///
    /// # Errors
    /// The communicator is broken, or the network does not reduce so.
    ///
    /// # Safety
    /// Both parts hold [`Reduction::len_bytes`] within what their registrations stand for; nobody writes `send` or touches `recv` until
    /// the request is done or the communicator dropped.
    unsafe fn iallreduce(
        &mut self,
        send: CollPart,
        recv: CollPart,
        what: Reduction,
    ) -> Result<Option<Request>, NetError>;

    /// Begins to gather `head_bytes` of every head's `send` into every head's `recv`, in the order of the heads.
    ///
    /// # Errors
    /// The communicator is broken; [`NetError::Unsupported`]: the network only reduces.
    ///
    /// # Safety
    /// As [`Self::iallreduce`], with `head_bytes` at `send` and as many times the heads at `recv`.
    unsafe fn iallgather(
        &mut self,
        send: CollPart,
        recv: CollPart,
        head_bytes: usize,
    ) -> Result<Option<Request>, NetError>;

    /// Begins to reduce all heads' `send`, of which head i gets the i-th block of `what.count` elements in `recv`.
    ///
    /// # Errors
    /// As [`Self::iallreduce`]; [`NetError::Unsupported`]: the network has no such operation.
    ///
    /// # Safety
    /// As [`Self::iallreduce`], with as many times [`Reduction::len_bytes`] at `send` as there are heads.
    unsafe fn ireduce_scatter(
        &mut self,
        send: CollPart,
        recv: CollPart,
        what: Reduction,
    ) -> Result<Option<Request>, NetError>;

    /// Makes what came into device memory visible to the device. `Ok(None)`: nothing need be done.
    ///
    /// # Errors
    /// The communicator is broken.
    ///
    /// # Safety
    /// The `len_bytes` at `part` lie within what its registration stands for, and the operation that wrote them is done.
    unsafe fn flush(&mut self, part: CollPart, len_bytes: usize) -> Result<Option<Request>, NetError>;
}
