//! From typed buffers to calls: the shapes of each operation, checked.

use super::untyped::Untyped;
use crate::api::error::ArgumentError;
use crate::api::operator::ReduceOp;
use crate::machine::cuda::{DeviceSlice, DeviceSliceMut};
use oxccl_shared::abi::{Func, Rank};
use oxccl_shared::reduce::Element;

/// Where a buffer's elements begin, and how many there are. Not followed here.
pub(super) struct Span<T> {
    start: *mut T,
    len: usize,
}

impl<T> From<&[T]> for Span<T> {
    fn from(slice: &[T]) -> Span<T> {
        Span { start: slice.as_ptr().cast_mut(), len: slice.len() }
    }
}

impl<T> From<&mut [T]> for Span<T> {
    fn from(slice: &mut [T]) -> Span<T> {
        Span { start: slice.as_mut_ptr(), len: slice.len() }
    }
}

impl<T: Element> From<DeviceSlice<'_, T>> for Span<T> {
    fn from(slice: DeviceSlice<'_, T>) -> Span<T> {
        Span { start: slice.as_ptr().cast_mut(), len: slice.len() }
    }
}

impl<T: Element> From<DeviceSliceMut<'_, T>> for Span<T> {
    fn from(slice: DeviceSliceMut<'_, T>) -> Span<T> {
        Span { start: slice.as_mut_ptr(), len: slice.len() }
    }
}

impl<T> Span<T> {
    /// Elements in a GPU's memory.
    pub(super) fn on_device(address: u64, len: usize) -> Span<T> {
        Span { start: std::ptr::without_provenance_mut(address as usize), len }
    }

    pub(super) fn parts(&self) -> (*mut T, usize) {
        (self.start, self.len)
    }
}

/// A rank among its communicator's.
#[derive(Clone, Copy)]
pub(super) struct Ranks {
    pub me: Rank,
    pub nranks: u32,
}

type Checked = Result<Untyped, ArgumentError>;

fn untyped<T: Element>(func: Func, send: &Span<T>, recv: &Span<T>, count: usize) -> Untyped {
    Untyped {
        send: send.start.cast_const().cast(),
        recv: recv.start.cast(),
        count,
        ..Untyped::new(func, T::DTYPE)
    }
}

fn length(
    func: Func,
    which: &'static str,
    actual: usize,
    expected: Option<usize>,
) -> Result<(), ArgumentError> {
    match expected {
        Some(expected) if expected == actual => Ok(()),
        _ => {
            let expected = expected.unwrap_or(usize::MAX);
            Err(ArgumentError::BufferLength { func, which, actual, expected })
        }
    }
}

impl Ranks {
    fn blocks(self, count: usize) -> Option<usize> {
        count.checked_mul(self.nranks as usize)
    }

    fn share(self, func: Func, which: &'static str, actual: usize) -> Result<usize, ArgumentError> {
        let nranks = self.nranks as usize;
        if actual.is_multiple_of(nranks) {
            return Ok(actual / nranks);
        }
        Err(ArgumentError::NotDivisible { func, which, actual, nranks: self.nranks })
    }

    pub(super) fn all_reduce<T: Element>(self, send: Span<T>, recv: Span<T>, op: ReduceOp) -> Checked {
        length(Func::AllReduce, "receive", recv.len, Some(send.len))?;
        Ok(Untyped { op, ..untyped(Func::AllReduce, &send, &recv, send.len) })
    }

    pub(super) fn all_reduce_in_place<T: Element>(self, buffer: Span<T>, op: ReduceOp) -> Checked {
        Ok(Untyped { op, ..untyped(Func::AllReduce, &buffer, &buffer, buffer.len) })
    }

    pub(super) fn all_gather<T: Element>(self, send: Span<T>, recv: Span<T>) -> Checked {
        length(Func::AllGather, "receive", recv.len, self.blocks(send.len))?;
        Ok(untyped(Func::AllGather, &send, &recv, send.len))
    }

    pub(super) fn all_gather_in_place<T: Element>(self, buffer: Span<T>) -> Checked {
        let count = self.share(Func::AllGather, "receive", buffer.len)?;
        let whole = untyped(Func::AllGather, &buffer, &buffer, count);
        Ok(Untyped { send: whole.send.wrapping_add(self.me.index() * count * size_of::<T>()), ..whole })
    }

    pub(super) fn reduce_scatter<T: Element>(self, send: Span<T>, recv: Span<T>, op: ReduceOp) -> Checked {
        length(Func::ReduceScatter, "send", send.len, self.blocks(recv.len))?;
        Ok(Untyped { op, ..untyped(Func::ReduceScatter, &send, &recv, recv.len) })
    }

    pub(super) fn reduce_scatter_in_place<T: Element>(self, buffer: Span<T>, op: ReduceOp) -> Checked {
        let count = self.share(Func::ReduceScatter, "send", buffer.len)?;
        let whole = untyped(Func::ReduceScatter, &buffer, &buffer, count);
        Ok(Untyped { op, recv: whole.recv.wrapping_add(self.me.index() * count * size_of::<T>()), ..whole })
    }

    pub(super) fn broadcast<T: Element>(self, send: Span<T>, recv: Span<T>, root: u32) -> Checked {
        if self.me == Rank(root) {
            length(Func::Broadcast, "send", send.len, Some(recv.len))?;
        }
        Ok(Untyped { peer: root, ..untyped(Func::Broadcast, &send, &recv, recv.len) })
    }

    pub(super) fn broadcast_in_place<T: Element>(self, buffer: Span<T>, root: u32) -> Checked {
        Ok(Untyped { peer: root, ..untyped(Func::Broadcast, &buffer, &buffer, buffer.len) })
    }

    pub(super) fn reduce<T: Element>(self, send: Span<T>, recv: Span<T>, op: ReduceOp, root: u32) -> Checked {
        if self.me == Rank(root) {
            length(Func::Reduce, "receive", recv.len, Some(send.len))?;
        }
        Ok(Untyped { op, peer: root, ..untyped(Func::Reduce, &send, &recv, send.len) })
    }

    pub(super) fn reduce_in_place<T: Element>(self, buffer: Span<T>, op: ReduceOp, root: u32) -> Checked {
        Ok(Untyped { op, peer: root, ..untyped(Func::Reduce, &buffer, &buffer, buffer.len) })
    }

    pub(super) fn send<T: Element>(self, send: Span<T>, peer: u32) -> Checked {
        let Span { start, len } = send;
        Ok(Untyped {
            send: start.cast_const().cast(),
            count: len,
            peer,
            ..Untyped::new(Func::Send, T::DTYPE)
        })
    }

    pub(super) fn recv<T: Element>(self, recv: Span<T>, peer: u32) -> Checked {
        Ok(Untyped { recv: recv.start.cast(), count: recv.len, peer, ..Untyped::new(Func::Recv, T::DTYPE) })
    }

    pub(super) fn all_to_all<T: Element>(self, send: Span<T>, recv: Span<T>) -> Checked {
        length(Func::AllToAll, "receive", recv.len, Some(send.len))?;
        let count = self.share(Func::AllToAll, "send", send.len)?;
        Ok(untyped(Func::AllToAll, &send, &recv, count))
    }

    pub(super) fn gather<T: Element>(self, send: Span<T>, recv: Span<T>, root: u32) -> Checked {
        if self.me == Rank(root) {
            length(Func::Gather, "receive", recv.len, self.blocks(send.len))?;
        }
        Ok(Untyped { peer: root, ..untyped(Func::Gather, &send, &recv, send.len) })
    }

    pub(super) fn scatter<T: Element>(self, send: Span<T>, recv: Span<T>, root: u32) -> Checked {
        if self.me == Rank(root) {
            length(Func::Scatter, "send", send.len, self.blocks(recv.len))?;
        }
        Ok(Untyped { peer: root, ..untyped(Func::Scatter, &send, &recv, recv.len) })
    }
}
