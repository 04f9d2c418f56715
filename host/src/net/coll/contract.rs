//! The interface of in-network reduction: the shape of NCCL's CollNet plugin table (`ncclCollNet_v12_t`), with
//! ownership in the types.
//!
//! One rank of every host takes part, its *head*. Each head contributes a buffer and receives the reduction of all.
//!
//! ```text
//! every head
//! listen -> NetHandle ~~ bootstrap, to all heads ~~> join(all handles, our index)
//! poll_join -> CollComm
//! register, iallreduce (or iallgather, ireduce_scatter), test
//! ```
//! Nothing here blocks: a call that cannot proceed returns `None`, and the caller repeats it. Once a communicator
//! exists, operations and `test` neither allocate nor lock on this side of a plugin's table.
//!
//! Operations are matched by order: the k-th operations of all heads belong together and must have the same count,
//! type and operator. A network need not detect a mismatch; the caller must.

use crate::net::{Comm, NetError, NetHandle, NetProperties, Registration, Request};
use core::fmt;
use core::ops::Range;
use oxccl_shared::abi::{DataType, RedOp};
use serde::{Deserialize, Serialize};

/// A network with in-network reduction.
pub trait CollNet: Send + Sync + fmt::Debug {
    /// Its name.
    fn name(&self) -> &str;

    /// Number of its devices, numbered from 0. Zero is not an error: the network is then not used.
    fn devices(&self) -> u32;

    /// The properties of `device`; `message_max_bytes` limits one operation's buffer.
    ///
    /// # Errors
    /// [`NetError::NoDevice`].
    fn properties(&self, device: u32) -> Result<NetProperties, NetError>;

    /// Whether it reduces such elements by such an operator: sum, product, maximum or minimum. The caller builds all
    /// other operators from these.
    ///
    /// # Errors
    /// The network's error.
    fn reduces(&self, dtype: DataType, op: RedOp) -> Result<bool, NetError>;

    /// The operations on windows that it has.
    fn windows(&self) -> Windows;

    /// Listens on `device` for one communicator. The other heads reach it by the handle.
    ///
    /// # Errors
    /// [`NetError::NoDevice`], or the device's error.
    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn CollListener>), NetError>;
}

/// Which operations on windows a network has; one that only reduces has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Windows {
    /// [`CollComm::iallgather`].
    pub gathers: bool,
    /// [`CollComm::ireduce_scatter`].
    pub scatters: bool,
}

impl Windows {
    /// All of them.
    pub const ALL: Windows = Windows { gathers: true, scatters: true };
}

/// A head's position among all heads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its index: that of its handle among all.
    pub index: u32,
    /// Number of heads.
    pub count: u32,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "head {} of {}", self.index, self.count)
    }
}

/// A listener for the other heads; closed when dropped.
pub trait CollListener: Send {
    /// Starts to connect all heads. The handles are in the same order on all heads; this listener's is at `index`.
    ///
    /// # Errors
    /// There is no handle at `index`, or the device's error.
    fn join(self: Box<Self>, handles: &[NetHandle], index: u32) -> Result<Box<dyn CollConnector>, NetError>;
}

/// A communicator being created; dropping it cancels that.
pub trait CollConnector: Send {
    /// The communicator, once all heads have joined.
    ///
    /// # Errors
    /// They cannot join. No later call succeeds.
    fn poll_join(&mut self) -> Result<Option<Box<dyn CollComm>>, NetError>;
}

/// Registered memory that an operation reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct CollPart {
    /// Its first byte.
    pub start: *mut u8,
    /// Its registration.
    pub registration: Registration,
}

/// The elements of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// Elements per head.
    pub count: usize,
    /// Their type.
    pub dtype: DataType,
    /// The operator: one that [`CollNet::reduces`] accepts.
    pub op: RedOp,
}

impl Reduction {
    /// Bytes of one head's elements.
    pub fn len_bytes(&self) -> usize {
        self.count * self.dtype.size_bytes()
    }
}

/// What one all-gather or reduce-scatter moves. The heads' blocks of `head_bytes`, in the order of the heads, are the *whole*; an operation moves
/// a window of it, the same on all heads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Bytes of a head's block.
    pub head_bytes: usize,
    /// Where the window begins in the whole.
    pub start: usize,
    /// Bytes of the window.
    pub len_bytes: usize,
}

impl Window {
    /// One head's block alone, of so many bytes.
    pub fn of_head(head: u32, len_bytes: usize) -> Window {
        Window { head_bytes: len_bytes, start: head as usize * len_bytes, len_bytes }
    }

    /// All of it.
    pub fn whole(head_bytes: usize, nheads: u32) -> Window {
        Window { head_bytes, start: 0, len_bytes: head_bytes * nheads as usize }
    }

    /// The end of the window in the whole.
    pub fn end(&self) -> usize {
        self.start.saturating_add(self.len_bytes)
    }

    /// What lies in a head's block, counted from the window's beginning; empty where nothing does.
    pub fn share(&self, head: u32) -> Range<usize> {
        let block = self.head_bytes.saturating_mul(head as usize);
        let inside = |at: usize| at.clamp(self.start, self.end()) - self.start;
        inside(block)..inside(block.saturating_add(self.head_bytes))
    }

    /// Whether it lies in the whole of so many heads.
    pub fn is_inside(&self, nheads: u32) -> bool {
        let whole = self.head_bytes.checked_mul(nheads as usize);
        let end = self.start.checked_add(self.len_bytes);
        whole.zip(end).is_some_and(|(whole, end)| end <= whole)
    }
}

/// The request of an operation that was started; `None` where it cannot start now.
pub type Started = Result<Option<Request>, NetError>;

/// One head's end of a communicator. Dropping it ends the communicator with all operations in flight.
///
/// An operation returns `None` where it cannot start now, for example because [`crate::net::REQUESTS_MAX`] are in
/// flight. It is complete when its output is written and its input no longer needed; `test` then returns the bytes of
/// the output.
pub trait CollComm: Comm {
    /// Starts to reduce all heads' `send` into every head's `recv`, which may be the same memory.
    ///
    /// # Errors
    /// The communicator is broken, or the network does not support this reduction.
    ///
    /// # Safety
    /// Both parts hold [`Reduction::len_bytes`] within the memory of their registrations; nobody writes `send` or
    /// accesses `recv` until the request is complete or the communicator dropped.
    unsafe fn iallreduce(&mut self, send: CollPart, recv: CollPart, what: Reduction) -> Started;

    /// Starts to gather a window of all heads' blocks into every head's `recv`. A head's `send` begins with what of its block lies in the window.
    ///
    /// # Errors
    /// The communicator is broken; [`NetError::Unsupported`]: the network only reduces.
    ///
    /// # Safety
    /// As [`Self::iallreduce`], with this head's [`Window::share`] at `send` and the window at `recv`.
    unsafe fn iallgather(&mut self, send: CollPart, recv: CollPart, window: Window) -> Started;

    /// Starts to reduce a window of all heads' `send`, which begins with the window; each head receives in `recv` what of its block lies there.
    ///
    /// # Errors
    /// As [`Self::iallreduce`]; [`NetError::Unsupported`]: the network has no such operation.
    ///
    /// # Safety
    /// As [`Self::iallreduce`], with the window at `send` and this head's [`Window::share`] at `recv`.
    unsafe fn ireduce_scatter(
        &mut self,
        send: CollPart,
        recv: CollPart,
        element: (DataType, RedOp),
        window: Window,
    ) -> Started;

    /// Makes data received into device memory visible to the device. `Ok(None)`: no flush is needed.
    ///
    /// # Errors
    /// The communicator is broken.
    ///
    /// # Safety
    /// The `len_bytes` at `part` lie within the memory of its registration, and the operation that wrote them is
    /// complete.
    unsafe fn flush(&mut self, part: CollPart, len_bytes: usize) -> Started;

    /// What operations in flight wait for, for messages: the device, which head this is, and where it is known the node of the network.
    fn awaited(&self) -> String;
}
