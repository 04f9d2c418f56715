//! The operations, typed. Shapes, with n ranks; `count` is what every rank must agree on:
//!
//! | operation | `send` | `recv` | count |
//! |---|---|---|---|
//! | all-reduce, broadcast, reduce | count | count | `send.len()` |
//! | all-gather | count | n * count | `send.len()` |
//! | reduce-scatter | n * count | count | `recv.len()` |
//! | all-to-all | n * count | n * count | `send.len() / n` |
//! | gather | count | n * count at the root, else ignored | `send.len()` |
//! | scatter | n * count at the root, else ignored | count | `recv.len()` |
//!
//! Block `r` of an n * count buffer is rank `r`'s.

use super::communicator::Communicator;
use super::device::{DeviceCommunicator, DeviceGroup, DeviceSlice, DeviceSliceMut};
use super::error::{ArgumentError, Error};
use super::operator::ReduceOp;
use crate::launch::RawCall;
use crate::machine::cuda::driver::StreamRef;
use crate::plan::Call;
use oxccl_shared::abi::{DataType, Func, RedOp};
use oxccl_shared::reduce::Element;

/// A call on untyped memory, for bindings and tools: counts as in the table above, whatever the pointers' alignment.
#[derive(Clone, Copy, Debug)]
pub struct Untyped {
    /// The function.
    pub func: Func,
    /// Input.
    pub send: *const u8,
    /// Output.
    pub recv: *mut u8,
    /// Elements, as the table says.
    pub count: usize,
    /// Their type.
    pub dtype: DataType,
    /// Operator of a reduction.
    pub op: ReduceOp,
    /// Root, or the peer of a send or receive.
    pub peer: u32,
}

impl Untyped {
    /// A call of `func` on nothing yet: the fields that matter are set with struct update syntax.
    pub fn new(func: Func, dtype: DataType) -> Untyped {
        let (send, recv) = (std::ptr::null(), std::ptr::null_mut());
        Untyped { func, send, recv, count: 0, dtype, op: ReduceOp::SUM, peer: 0 }
    }

    /// Checks everything about the call that can be known without touching memory.
    pub(super) fn check(&self, rank: u32, nranks: u32) -> Result<RawCall, ArgumentError> {
        let Untyped { func, dtype, .. } = *self;
        // A barrier has no buffers, whatever the count says.
        let count = if func == Func::Barrier { 0 } else { self.count };
        let rooted = matches!(
            func,
            Func::Broadcast | Func::Reduce | Func::Gather | Func::Scatter | Func::Send | Func::Recv
        );
        if rooted && self.peer >= nranks {
            return Err(ArgumentError::NoSuchRank { func, rank: self.peer, nranks });
        }
        let elems = count.checked_mul(nranks as usize);
        if elems
            .and_then(|n| n.checked_mul(dtype.size_bytes()))
            .is_none_or(|bytes| bytes > isize::MAX as usize)
        {
            return Err(ArgumentError::TooLarge { func, count, dtype });
        }
        let is_root = rank == self.peer;
        let reads = !matches!(func, Func::Recv | Func::Barrier)
            && (is_root || !matches!(func, Func::Broadcast | Func::Scatter));
        let writes = !matches!(func, Func::Send | Func::Barrier)
            && (is_root || !matches!(func, Func::Reduce | Func::Gather));
        if count > 0 && reads && self.send.is_null() {
            return Err(ArgumentError::NullBuffer { func, which: "send", count });
        }
        if count > 0 && writes && self.recv.is_null() {
            return Err(ArgumentError::NullBuffer { func, which: "receive", count });
        }
        if func == Func::AllToAll && count > 0 && nranks > 1 && self.send == self.recv.cast_const() {
            return Err(ArgumentError::InPlace { func });
        }
        let reduces = matches!(func, Func::AllReduce | Func::Reduce | Func::ReduceScatter);
        let scalar_bits = match self.op.scalar {
            Some((scalar, _)) if reduces && scalar != dtype => {
                return Err(ArgumentError::ScalarType { func, scalar, buffers: dtype });
            }
            Some((_, bits)) => bits,
            None => 0,
        };
        let call = Call {
            func,
            dtype,
            op: if reduces { self.op.op } else { RedOp::Sum },
            root: if rooted { self.peer } else { 0 },
            count: count as u64,
        };
        Ok(RawCall { call, send: self.send, recv: self.recv, scalar_bits })
    }
}

/// What the typed methods of [`Communicator`] and [`super::Group`] share: from slices to a checked call.
pub(super) struct Slices {
    pub nranks: u32,
}

impl Slices {
    pub fn untyped<T: Element>(func: Func, send: *const T, recv: *mut T, count: usize) -> Untyped {
        Untyped { send: send.cast(), recv: recv.cast(), count, ..Untyped::new(func, T::DTYPE) }
    }

    /// The same buffer for both, as one pointer with the right to write.
    pub fn in_place<T: Element>(func: Func, buffer: *mut T, count: usize) -> Untyped {
        Slices::untyped(func, buffer.cast_const(), buffer, count)
    }

    pub fn length(
        func: Func,
        which: &'static str,
        actual: usize,
        expected: Option<usize>,
    ) -> Result<(), ArgumentError> {
        match expected {
            Some(expected) if expected == actual => Ok(()),
            _ => Err(ArgumentError::BufferLength {
                func,
                which,
                actual,
                expected: expected.unwrap_or(usize::MAX),
            }),
        }
    }

    pub fn blocks(&self, count: usize) -> Option<usize> {
        count.checked_mul(self.nranks as usize)
    }

    pub fn share(&self, func: Func, which: &'static str, actual: usize) -> Result<usize, ArgumentError> {
        let nranks = self.nranks as usize;
        if actual.is_multiple_of(nranks) {
            return Ok(actual / nranks);
        }
        Err(ArgumentError::NotDivisible { func, which, actual, nranks: self.nranks })
    }
}

/// Writes each operation once: for the communicator (runs now) and the group (runs at its end), of ranks on CPUs and of GPUs.
macro_rules! operations {
    ($($(#[$meta:meta])* fn $name:ident<T>($me:ident, $slices:ident $(, $arg:ident: $ty:ty)*) $body:block)+) => {
        impl Communicator {
            $($(#[$meta])*
            ///
            /// # Errors
            /// See [`Communicator`].
            pub fn $name<T: Element>(&self $(, $arg: $ty)*) -> Result<(), Error> {
                let ($me, $slices) = (self.rank(), Slices { nranks: self.size() });
                let _ = ($me, &$slices);
                let untyped: Untyped = $body;
                // SAFETY: the pointers come from slices whose lengths `$body` has checked against the call's count.
                unsafe { self.run_untyped(&untyped) }
            })+
        }

        impl<'env> super::Group<'env> {
            $($(#[$meta])*
            ///
            /// # Errors
            /// Wrong arguments; everything else is the group's own result.
            pub fn $name<T: Element>(
                &mut self,
                communicator: &'env Communicator
                $(, $arg: operations!(@env 'env $arg $ty))*
            ) -> Result<(), Error> {
                let ($me, $slices) = (communicator.rank(), Slices { nranks: communicator.size() });
                let _ = ($me, &$slices);
                let untyped: Untyped = $body;
                // SAFETY: as above; the borrows last for `'env`, which outlives the group.
                unsafe { self.add_untyped(communicator, &untyped) }
            })+
        }

        impl DeviceCommunicator {
            $($(#[$meta])*
            ///
            /// # Errors
            /// See [`DeviceCommunicator`].
            ///
            /// # Safety
            /// 1. Until the stream has done the work the buffers stay, nobody writes what it reads and nobody touches what it
            ///    writes.
            /// 2. The stream is not destroyed before.
            pub unsafe fn $name<T: Element>(
                &self
                $(, $arg: operations!(@device '_ $arg $ty))*,
                stream: StreamRef<'_>
            ) -> Result<(), Error> {
                let ($me, $slices) = (self.rank(), Slices { nranks: self.size() });
                let _ = ($me, &$slices);
                let untyped: Untyped = $body;
                // SAFETY: the addresses come from views whose lengths `$body` has checked against the call's count, and by
                // obligations 1 and 2.
                unsafe { self.enqueue_untyped(&untyped, stream) }
            })+
        }

        impl<'env> DeviceGroup<'env> {
            $($(#[$meta])*
            ///
            /// # Errors
            /// Wrong arguments; everything else is the group's own result.
            ///
            /// # Safety
            /// 1. As the method of [`DeviceCommunicator`].
            pub unsafe fn $name<T: Element>(
                &mut self,
                communicator: &'env DeviceCommunicator
                $(, $arg: operations!(@device 'env $arg $ty))*,
                stream: StreamRef<'env>
            ) -> Result<(), Error> {
                let ($me, $slices) = (communicator.rank(), Slices { nranks: communicator.size() });
                let _ = ($me, &$slices);
                let untyped: Untyped = $body;
                // SAFETY: as above.
                unsafe { self.add_untyped(communicator, &untyped, stream) }
            })+
        }
    };
    (@env $env:lifetime send $ty:ty) => { &$env [T] };
    (@env $env:lifetime recv $ty:ty) => { &$env mut [T] };
    (@env $env:lifetime buffer $ty:ty) => { &$env mut [T] };
    (@env $env:lifetime $arg:ident $ty:ty) => { $ty };
    (@device $env:lifetime send $ty:ty) => { DeviceSlice<$env, T> };
    (@device $env:lifetime recv $ty:ty) => { DeviceSliceMut<$env, T> };
    (@device $env:lifetime buffer $ty:ty) => { DeviceSliceMut<$env, T> };
    (@device $env:lifetime $arg:ident $ty:ty) => { $ty };
}

operations! {
    /// Reduces all ranks' `send` into every rank's `recv`.
    fn all_reduce<T>(me, slices, send: &[T], recv: &mut [T], op: ReduceOp) {
        Slices::length(Func::AllReduce, "receive", recv.len(), Some(send.len()))?;
        Untyped { op, ..Slices::untyped(Func::AllReduce, send.as_ptr(), recv.as_mut_ptr(), send.len()) }
    }

    /// Reduces all ranks' `buffer` into every rank's `buffer`.
    fn all_reduce_in_place<T>(me, slices, buffer: &mut [T], op: ReduceOp) {
        let count = buffer.len();
        Untyped { op, ..Slices::in_place(Func::AllReduce, buffer.as_mut_ptr(), count) }
    }

    /// Every rank's `send` becomes block `rank` of every rank's `recv`.
    fn all_gather<T>(me, slices, send: &[T], recv: &mut [T]) {
        Slices::length(Func::AllGather, "receive", recv.len(), slices.blocks(send.len()))?;
        Slices::untyped(Func::AllGather, send.as_ptr(), recv.as_mut_ptr(), send.len())
    }

    /// As `all_gather`, with this rank's input already in its block of `buffer`.
    fn all_gather_in_place<T>(me, slices, buffer: &mut [T]) {
        let count = slices.share(Func::AllGather, "receive", buffer.len())?;
        let whole = Slices::in_place(Func::AllGather, buffer.as_mut_ptr(), count);
        Untyped { send: whole.send.wrapping_add(me as usize * count * size_of::<T>()), ..whole }
    }

    /// Reduces all ranks' `send`; block `rank` of the result goes to `recv`.
    fn reduce_scatter<T>(me, slices, send: &[T], recv: &mut [T], op: ReduceOp) {
        Slices::length(Func::ReduceScatter, "send", send.len(), slices.blocks(recv.len()))?;
        let count = recv.len();
        Untyped { op, ..Slices::untyped(Func::ReduceScatter, send.as_ptr(), recv.as_mut_ptr(), count) }
    }

    /// As `reduce_scatter`, with the result in this rank's block of `buffer`; the other blocks then hold anything.
    fn reduce_scatter_in_place<T>(me, slices, buffer: &mut [T], op: ReduceOp) {
        let count = slices.share(Func::ReduceScatter, "send", buffer.len())?;
        let whole = Slices::in_place(Func::ReduceScatter, buffer.as_mut_ptr(), count);
        Untyped { op, recv: whole.recv.wrapping_add(me as usize * count * size_of::<T>()), ..whole }
    }

    /// The root's `send` becomes every rank's `recv`. `send` is read at the root only and may be empty elsewhere.
    fn broadcast<T>(me, slices, send: &[T], recv: &mut [T], root: u32) {
        if me == root {
            Slices::length(Func::Broadcast, "send", send.len(), Some(recv.len()))?;
        }
        let count = recv.len();
        Untyped { peer: root, ..Slices::untyped(Func::Broadcast, send.as_ptr(), recv.as_mut_ptr(), count) }
    }

    /// The root's `buffer` becomes every rank's.
    fn broadcast_in_place<T>(me, slices, buffer: &mut [T], root: u32) {
        let count = buffer.len();
        Untyped { peer: root, ..Slices::in_place(Func::Broadcast, buffer.as_mut_ptr(), count) }
    }

    /// Reduces all ranks' `send` into the root's `recv`, which is written at the root only and may be empty elsewhere.
    fn reduce<T>(me, slices, send: &[T], recv: &mut [T], op: ReduceOp, root: u32) {
        if me == root {
            Slices::length(Func::Reduce, "receive", recv.len(), Some(send.len()))?;
        }
        Untyped { op, peer: root, ..Slices::untyped(Func::Reduce, send.as_ptr(), recv.as_mut_ptr(), send.len()) }
    }

    /// Reduces all ranks' `buffer` into the root's; the others keep theirs.
    fn reduce_in_place<T>(me, slices, buffer: &mut [T], op: ReduceOp, root: u32) {
        let count = buffer.len();
        Untyped { op, peer: root, ..Slices::in_place(Func::Reduce, buffer.as_mut_ptr(), count) }
    }

    /// Sends to `peer`, which must receive as many bytes. Returns when `send` may be changed, which for a long message is
    /// when the peer has begun to receive.
    fn send<T>(me, slices, send: &[T], peer: u32) {
        Untyped { send: send.as_ptr().cast(), count: send.len(), peer, ..Untyped::new(Func::Send, T::DTYPE) }
    }

    /// Receives from `peer`, which must send as many bytes.
    fn recv<T>(me, slices, recv: &mut [T], peer: u32) {
        let (count, recv) = (recv.len(), recv.as_mut_ptr().cast());
        Untyped { recv, count, peer, ..Untyped::new(Func::Recv, T::DTYPE) }
    }

    /// Block j of rank i's `send` becomes block i of rank j's `recv`.
    fn all_to_all<T>(me, slices, send: &[T], recv: &mut [T]) {
        Slices::length(Func::AllToAll, "receive", recv.len(), Some(send.len()))?;
        let count = slices.share(Func::AllToAll, "send", send.len())?;
        Slices::untyped(Func::AllToAll, send.as_ptr(), recv.as_mut_ptr(), count)
    }

    /// Every rank's `send` becomes block `rank` of the root's `recv`, which may be empty elsewhere.
    fn gather<T>(me, slices, send: &[T], recv: &mut [T], root: u32) {
        if me == root {
            Slices::length(Func::Gather, "receive", recv.len(), slices.blocks(send.len()))?;
        }
        Untyped { peer: root, ..Slices::untyped(Func::Gather, send.as_ptr(), recv.as_mut_ptr(), send.len()) }
    }

    /// Block r of the root's `send` becomes rank r's `recv`; `send` may be empty elsewhere.
    fn scatter<T>(me, slices, send: &[T], recv: &mut [T], root: u32) {
        if me == root {
            Slices::length(Func::Scatter, "send", send.len(), slices.blocks(recv.len()))?;
        }
        let count = recv.len();
        Untyped { peer: root, ..Slices::untyped(Func::Scatter, send.as_ptr(), recv.as_mut_ptr(), count) }
    }
}

impl Communicator {
    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn barrier(&self) -> Result<(), Error> {
        // SAFETY: a barrier touches no buffer.
        unsafe { self.run_untyped(&Untyped::new(Func::Barrier, DataType::U8)) }
    }

    /// Runs a call on untyped memory.
    ///
    /// # Errors
    /// See [`Communicator`].
    ///
    /// # Safety
    /// 1. `send` and `recv` are valid for the shapes of the table in this module, each where its function uses it.
    /// 2. `recv` equals `send` or, where one of them has n blocks and the other one, the one is this rank's block of the other;
    ///    or they do not overlap. All-to-all has no such form. Nobody else touches them meanwhile.
    pub unsafe fn run_untyped(&self, untyped: &Untyped) -> Result<(), Error> {
        let call = untyped.check(self.rank(), self.size())?;
        // SAFETY: obligations 1 and 2.
        unsafe { self.run(std::slice::from_ref(&call)) }
    }
}
