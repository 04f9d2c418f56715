//! All-gather-v and reduce-scatter-v: blocks of any length that every rank knows, made of operations that exist.
//!
//! An all-gather-v is a group of messages, as all-to-all-v is: each rank sends its block to all others. A reduce-scatter-v is a group of
//! reductions, one for each rank's block.

use super::all_to_all_v::{Blocks, add_all};
use super::shapes::{Ranks, Span};
use super::untyped::Untyped;
use crate::api::communicator::{Comm, Communicator};
use crate::api::error::{ArgumentError, BlocksError, Error};
use crate::api::group::Group;
use crate::api::init::Init;
use crate::api::operator::ReduceOp;
use crate::launch::{RawCall, StreamMachine};
use crate::machine::cuda::{DeviceSlice, DeviceSliceMut};
use oxccl_shared::abi::{Func, Rank};
use oxccl_shared::algo::pairwise;
use oxccl_shared::reduce::Element;
use std::ptr;

type Checked = Result<RawCall, ArgumentError>;

/// A rank's blocks of a buffer, all of which every rank knows.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    me: Rank,
    nranks: u32,
    blocks: Blocks<'a>,
}

impl Place<'_> {
    /// Checks the blocks of `buffer`, of which this rank's has as many elements as `own`.
    fn check(&self, which: &'static str, buffer: usize, own: usize) -> Result<(), BlocksError> {
        self.blocks.check(which, self.nranks, buffer)?;
        self.blocks.check_apart(self.nranks)?;
        let count = self.blocks.counts[self.me.index()];
        if own == count {
            return Ok(());
        }
        let (sent, received) = if which == "receive" { (own, count) } else { (count, own) };
        Err(BlocksError::Own { rank: self.me, sent, received })
    }
}

/// The messages of an all-gather-v.
pub(super) fn gather<'a, T: Element>(
    send: &Span<T>,
    recv: &Span<T>,
    place: Place<'a>,
) -> Result<impl Iterator<Item = Untyped> + Clone + use<'a, T>, BlocksError> {
    let ((send, count), (recv, len)) = (send.parts(), recv.parts());
    place.check("receive", len, count)?;
    let Place { me, nranks, blocks } = place;
    Ok(pairwise::rounds(me, nranks, nranks).flat_map(move |round| {
        let from = blocks.of(round.recv_from);
        let sent = Untyped {
            send: send.cast_const().cast(),
            count,
            peer: round.send_to.0,
            ..Untyped::new(Func::Send, T::DTYPE)
        };
        let received = Untyped {
            recv: recv.wrapping_add(from.start).cast(),
            count: from.len(),
            peer: round.recv_from.0,
            ..Untyped::new(Func::Recv, T::DTYPE)
        };
        [sent, received]
    }))
}

/// The reductions of a reduce-scatter-v; none for blocks without elements.
pub(super) fn reduce<'a, T: Element>(
    send: &Span<T>,
    recv: &Span<T>,
    op: ReduceOp,
    place: Place<'a>,
) -> Result<impl Iterator<Item = Untyped> + Clone + use<'a, T>, BlocksError> {
    let ((send, len), (recv, count)) = (send.parts(), recv.parts());
    place.check("send", len, count)?;
    let Place { nranks, blocks, .. } = place;
    let with_elements = (0..nranks).map(Rank).filter(move |root| !blocks.of(*root).is_empty());
    Ok(with_elements.map(move |root| Untyped {
        send: send.cast_const().wrapping_add(blocks.of(root).start).cast(),
        recv: recv.cast(),
        count: blocks.of(root).len(),
        op,
        peer: root.0,
        ..Untyped::new(Func::Reduce, T::DTYPE)
    }))
}

impl<M: Init> Comm<M> {
    pub(super) fn place<'a>(&self, blocks: Blocks<'a>) -> Place<'a> {
        Place { me: self.member.rank, nranks: self.size(), blocks }
    }
}

impl Ranks {
    /// The calls of an all-gather-v.
    pub(super) fn all_gather_v<T: Element>(
        self,
        send: Span<T>,
        recv: Span<T>,
        blocks: Blocks<'_>,
    ) -> Result<impl Iterator<Item = Checked> + Clone, ArgumentError> {
        let Ranks { me, nranks } = self;
        Ok(gather(&send, &recv, Place { me, nranks, blocks })?.map(move |call| call.check(me, nranks)))
    }

    /// The calls of a reduce-scatter-v.
    pub(super) fn reduce_scatter_v<T: Element>(
        self,
        send: Span<T>,
        recv: Span<T>,
        blocks: Blocks<'_>,
        op: ReduceOp,
    ) -> Result<impl Iterator<Item = Checked> + Clone, ArgumentError> {
        let Ranks { me, nranks } = self;
        Ok(reduce(&send, &recv, op, Place { me, nranks, blocks })?.map(move |call| call.check(me, nranks)))
    }
}

impl Communicator {
    /// Gathers blocks of any length on every rank: `send` of rank r becomes block r of `recv`, and `blocks`, the same on every rank, says
    /// where they lie there.
    ///
    /// # Errors
    /// [`BlocksError`] if the blocks do not fit the ranks, the buffer or `send`. Another length on another rank is a mismatch. For the rest
    /// see [`Communicator`].
    ///
    /// # Examples
    /// ```no_run
    /// # fn gather(comm: &oxccl::Communicator) -> Result<(), oxccl::Error> {
    /// use oxccl::Blocks;
    /// // Of two ranks, rank 0 has one element and rank 1 two.
    /// let mine = vec![comm.rank(); 1 + comm.rank() as usize];
    /// let mut all = [0; 3];
    /// comm.all_gather_v(&mine, &mut all, Blocks { counts: &[1, 2], displs: &[0, 1] })
    /// # }
    /// ```
    pub fn all_gather_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let calls = self.ranks().all_gather_v(send.into(), recv.into(), blocks)?;
        // The buffers are borrowed for as long as the group runs, and the blocks were found to lie in them, apart from each other.
        Group::collect(|group| add_all(group, self, calls, ptr::null_mut()))
    }

    /// Reduces all ranks' `send` and scatters the result by blocks of any length: block r of it goes to `recv` of rank r. `blocks`, the
    /// same on every rank, says where they lie in `send`.
    ///
    /// # Errors
    /// [`BlocksError`] if the blocks do not fit the ranks, the buffer or `recv`; [`ArgumentError::ScalarType`] if the operator's scalar is
    /// not a `T`. Other blocks on another rank are a mismatch. For the rest see [`Communicator`].
    pub fn reduce_scatter_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        blocks: Blocks<'_>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let calls = self.ranks().reduce_scatter_v(send.into(), recv.into(), blocks, op)?;
        // As for `all_gather_v`.
        Group::collect(|group| add_all(group, self, calls, ptr::null_mut()))
    }
}

impl<'env> Group<'env> {
    /// Adds [`Communicator::all_gather_v`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn all_gather_v<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
        blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let calls = communicator.ranks().all_gather_v(send.into(), recv.into(), blocks)?;
        add_all(self, communicator, calls, ptr::null_mut())
    }

    /// Adds [`Communicator::reduce_scatter_v`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
        blocks: Blocks<'_>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let calls = communicator.ranks().reduce_scatter_v(send.into(), recv.into(), blocks, op)?;
        add_all(self, communicator, calls, ptr::null_mut())
    }
}

impl<M: Init<Unit = u32> + StreamMachine> Comm<M> {
    /// Gathers blocks of any length on every rank: as [`Communicator::all_gather_v`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn all_gather_v<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        blocks: Blocks<'_>,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let calls = gather(&send.into(), &recv.into(), self.place(blocks)).map_err(ArgumentError::from)?;
        let calls = calls.map(|call| self.check(&call, stream));
        // Buffers and stream are the caller's to keep (obligations 1 and 2).
        Group::collect(|group| add_all(group, self, calls, M::raw(stream)))
    }

    /// Reduces and scatters by blocks of any length: as [`Communicator::reduce_scatter_v`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn reduce_scatter_v<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        blocks: Blocks<'_>,
        op: ReduceOp,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let calls =
            reduce(&send.into(), &recv.into(), op, self.place(blocks)).map_err(ArgumentError::from)?;
        let calls = calls.map(|call| self.check(&call, stream));
        // Buffers and stream are the caller's to keep (obligations 1 and 2).
        Group::collect(|group| add_all(group, self, calls, M::raw(stream)))
    }
}
