//! All-to-all-v: blocks of any length between all pairs, which run as one group of sends and receives.
//!
//! Ranks pass different counts, so there is no call that all of them make alike and no record of one. Each block is a message,
//! whose two ends compare its length, and what is said of a fault names that message: who, how long, to whom.

use super::shapes::{Ranks, Span};
use super::untyped::Untyped;
use crate::api::communicator::{Comm, Communicator};
use crate::api::error::{ArgumentError, BlocksError, Error};
use crate::api::group::Group;
use crate::api::init::Init;
use crate::launch::{RawCall, RawQueue, StreamMachine};
use crate::machine::cuda::{DeviceSlice, DeviceSliceMut};
use oxccl_shared::abi::{DataType, Func, Rank};
use oxccl_shared::algo::pairwise;
use oxccl_shared::reduce::Element;
use std::ops::Range;
use std::ptr;

/// Where each rank's block lies in a buffer, in elements: counts and displacements as `MPI_Alltoallv` has them.
///
/// The displacement of a block without elements does not matter. Blocks that are received do not overlap.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Elements of each rank's block.
    pub counts: &'a [usize],
    /// Where each rank's block begins.
    pub displs: &'a [usize],
}

/// An all-to-all-v on untyped memory, for bindings and tools.
#[derive(Clone, Copy, Debug)]
pub struct UntypedV<'a> {
    /// Input.
    pub send: *const u8,
    /// What goes to each rank.
    pub send_blocks: Blocks<'a>,
    /// Output.
    pub recv: *mut u8,
    /// What comes from each rank.
    pub recv_blocks: Blocks<'a>,
    /// The elements' type.
    pub dtype: DataType,
}

impl Blocks<'_> {
    pub(super) fn of(&self, rank: Rank) -> Range<usize> {
        let (count, start) = (self.counts[rank.index()], self.displs[rank.index()]);
        // What wraps is refused by `check`.
        start..start.wrapping_add(count)
    }

    /// Checks that there is a block for each rank, within a buffer of `actual` elements.
    pub(super) fn check(&self, which: &'static str, nranks: u32, actual: usize) -> Result<(), BlocksError> {
        let (counts, displs) = (self.counts.len(), self.displs.len());
        if [counts, displs] != [nranks as usize; 2] {
            return Err(BlocksError::Ranks { which, counts, displs, nranks });
        }
        let blocks = (0..nranks).map(Rank).zip(self.counts.iter().zip(self.displs));
        for (rank, (&count, &displ)) in blocks {
            let is_inside = displ.checked_add(count).is_some_and(|end| end <= actual);
            if count > 0 && !is_inside {
                return Err(BlocksError::Range { which, rank, count, displ, actual });
            }
        }
        Ok(())
    }

    /// Checks that no two blocks overlap: one pass where they lie in the ranks' order, else every pair.
    pub(super) fn check_apart(&self, nranks: u32) -> Result<(), BlocksError> {
        let blocks =
            || (0..nranks).map(Rank).map(|rank| (rank, self.of(rank))).filter(|(_, block)| !block.is_empty());
        if blocks().is_sorted_by(|(_, a), (_, b)| a.end <= b.start) {
            return Ok(());
        }
        for (rank, a) in blocks() {
            for (other, b) in blocks().skip_while(|(other, _)| *other <= rank) {
                if a.start < b.end && b.start < a.end {
                    return Err(BlocksError::Overlap { rank, other });
                }
            }
        }
        Ok(())
    }
}

impl<'a> UntypedV<'a> {
    /// Checks that the blocks lie within the buffers.
    pub(super) fn of_spans<T: Element>(
        (send, send_blocks): (Span<T>, Blocks<'a>),
        (recv, recv_blocks): (Span<T>, Blocks<'a>),
        nranks: u32,
    ) -> Result<UntypedV<'a>, BlocksError> {
        let ((send, send_len), (recv, recv_len)) = (send.parts(), recv.parts());
        send_blocks.check("send", nranks, send_len)?;
        recv_blocks.check("receive", nranks, recv_len)?;
        let (send, recv) = (send.cast_const().cast(), recv.cast());
        Ok(UntypedV { send, send_blocks, recv, recv_blocks, dtype: T::DTYPE })
    }

    /// Checks everything about the call that can be known without touching memory.
    fn check(&self, me: Rank, nranks: u32) -> Result<(), BlocksError> {
        let elems_max = isize::MAX as usize / self.dtype.size_bytes();
        for (which, blocks, is_null) in [
            ("send", &self.send_blocks, self.send.is_null()),
            ("receive", &self.recv_blocks, self.recv.is_null()),
        ] {
            blocks.check(which, nranks, elems_max)?;
            if let Some(rank) = (0..nranks).map(Rank).find(|rank| is_null && !blocks.of(*rank).is_empty()) {
                return Err(BlocksError::Null { which, rank, count: blocks.counts[rank.index()] });
            }
        }
        let own = me.index();
        let (sent, received) = (self.send_blocks.counts[own], self.recv_blocks.counts[own]);
        if sent != received {
            return Err(BlocksError::Own { rank: me, sent, received });
        }
        self.recv_blocks.check_apart(nranks)
    }

    /// The messages of rank `me`, in an order in which both ends reach the same pair at the same time.
    fn messages(self, me: Rank, nranks: u32) -> impl Iterator<Item = Untyped> + Clone {
        let UntypedV { send, send_blocks, recv, recv_blocks, dtype } = self;
        let offset = move |displ: usize| displ.wrapping_mul(dtype.size_bytes());
        pairwise::rounds(me, nranks, nranks).flat_map(move |round| {
            let (to, from) = (send_blocks.of(round.send_to), recv_blocks.of(round.recv_from));
            let sent = Untyped {
                send: send.wrapping_add(offset(to.start)),
                count: to.len(),
                peer: round.send_to.0,
                ..Untyped::new(Func::Send, dtype)
            };
            let received = Untyped {
                recv: recv.wrapping_add(offset(from.start)),
                count: from.len(),
                peer: round.recv_from.0,
                ..Untyped::new(Func::Recv, dtype)
            };
            [sent, received]
        })
    }
}

/// Adds calls to a group: all of them, or none if one is refused. The caller answers for their buffers and queue until the group
/// has run.
pub(super) fn add_all<'env, M: Init>(
    group: &mut Group<'env, M>,
    communicator: &'env Comm<M>,
    calls: impl Iterator<Item = Result<RawCall, ArgumentError>> + Clone,
    queue: RawQueue,
) -> Result<(), Error> {
    calls.clone().try_for_each(|call| call.map(drop))?;
    for call in calls {
        group.add(communicator, call?, queue);
    }
    Ok(())
}

/// A call's messages, checked.
pub(super) fn on_cpu(
    Ranks { me, nranks }: Ranks,
    call: &UntypedV<'_>,
) -> Result<impl Iterator<Item = Result<RawCall, ArgumentError>> + Clone, ArgumentError> {
    call.check(me, nranks)?;
    Ok(call.messages(me, nranks).map(move |message| message.check(me, nranks)))
}

/// A call's messages, checked for a stream.
fn on_stream<M: Init<Unit = u32> + StreamMachine>(
    communicator: &Comm<M>,
    call: &UntypedV<'_>,
    stream: M::Stream<'_>,
) -> Result<impl Iterator<Item = Result<RawCall, ArgumentError>> + Clone, ArgumentError> {
    let (me, nranks) = (communicator.member.rank, communicator.size());
    call.check(me, nranks)?;
    Ok(call.messages(me, nranks).map(move |message| communicator.check(&message, stream)))
}

impl Communicator {
    /// Exchanges blocks of any length between all pairs: block j of rank i's `send` becomes block i of rank j's `recv`, and
    /// `send_blocks` and `recv_blocks` say where they lie.
    ///
    /// Block j of rank i's `send` is as long as block i of rank j's `recv`. What lies between blocks of `recv` keeps its content.
    /// Blocks are messages, matched with [`Self::send`]'s and [`Self::recv`]'s in the order of the calls.
    ///
    /// # Errors
    /// [`BlocksError`] if the blocks do not fit the ranks or the buffers. A block of another length than its receiver expects is a
    /// mismatch, which names its sender. For the rest see [`Communicator`].
    ///
    /// # Examples
    /// ```no_run
    /// # fn exchange(comm: &oxccl::Communicator) -> Result<(), oxccl::Error> {
    /// use oxccl::Blocks;
    /// // Of two ranks, each sends one element to rank 0 and two to rank 1.
    /// let sent = Blocks { counts: &[1, 2], displs: &[0, 1] };
    /// let count = 1 + comm.rank() as usize;
    /// let received = Blocks { counts: &[count, count], displs: &[0, count] };
    /// comm.all_to_all_v(&[7, 8, 9], sent, &mut vec![0; 2 * count], received)
    /// # }
    /// ```
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        send_blocks: Blocks<'_>,
        recv: &mut [T],
        recv_blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let (send, recv) = ((send.into(), send_blocks), (recv.into(), recv_blocks));
        let call = UntypedV::of_spans::<T>(send, recv, self.size()).map_err(ArgumentError::from)?;
        // SAFETY: (1, 2) the pointers come from slices, in which the blocks were found to lie.
        unsafe { self.run_untyped_v(&call) }
    }

    /// Runs an all-to-all-v on untyped memory.
    ///
    /// # Errors
    /// As [`Self::all_to_all_v`].
    ///
    /// # Safety
    /// 1. Every block lies in memory that is valid for reading, of `recv` for writing. Nobody else touches it meanwhile.
    /// 2. No block of `recv` overlaps one of `send`.
    pub unsafe fn run_untyped_v(&self, call: &UntypedV<'_>) -> Result<(), Error> {
        let calls = on_cpu(self.ranks(), call)?;
        // The buffers are the caller's for as long as the group runs (obligations 1 and 2).
        Group::collect(|group| add_all(group, self, calls, ptr::null_mut()))
    }
}

impl<'env> Group<'env> {
    /// Adds [`Communicator::all_to_all_v`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        send_blocks: Blocks<'_>,
        recv: &'env mut [T],
        recv_blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let (send, recv) = ((send.into(), send_blocks), (recv.into(), recv_blocks));
        let call = UntypedV::of_spans::<T>(send, recv, communicator.size()).map_err(ArgumentError::from)?;
        // SAFETY: (1) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped_v(communicator, &call) }
    }

    /// Adds an all-to-all-v on untyped memory.
    ///
    /// # Errors
    /// Wrong arguments, as there.
    ///
    /// # Safety
    /// 1. As [`Communicator::run_untyped_v`], until the group has run.
    pub unsafe fn add_untyped_v(
        &mut self,
        communicator: &'env Communicator,
        call: &UntypedV<'_>,
    ) -> Result<(), Error> {
        let calls = on_cpu(communicator.ranks(), call)?;
        add_all(self, communicator, calls, ptr::null_mut())
    }
}

impl<M: Init<Unit = u32> + StreamMachine> Comm<M> {
    /// Exchanges blocks of any length between all pairs: block j of rank i's `send` becomes block i of rank j's `recv`, and
    /// `send_blocks` and `recv_blocks` say where they lie.
    ///
    /// Block j of rank i's `send` is as long as block i of rank j's `recv`. What lies between blocks of `recv` keeps its content.
    /// Blocks are messages, matched with [`Self::send`]'s and [`Self::recv`]'s in the order of the calls. Counts and displacements
    /// are read before this returns; a graph keeps those with which it was captured.
    ///
    /// # Errors
    /// [`BlocksError`] if the blocks do not fit the ranks or the buffers; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn all_to_all_v<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        send_blocks: Blocks<'_>,
        recv: DeviceSliceMut<'_, T>,
        recv_blocks: Blocks<'_>,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let (send, recv) = ((send.into(), send_blocks), (recv.into(), recv_blocks));
        let call = UntypedV::of_spans::<T>(send, recv, self.size()).map_err(ArgumentError::from)?;
        // SAFETY: (1 to 3) the addresses come from views, in which the blocks were found to lie; obligations 1 and 2.
        unsafe { self.enqueue_untyped_v(&call, stream) }
    }

    /// Enqueues an all-to-all-v on untyped memory. Its pointers are addresses in this GPU's memory, aligned to the elements' size.
    ///
    /// # Errors
    /// As [`Self::all_to_all_v`].
    ///
    /// # Safety
    /// 1. Every block lies in memory that this GPU can use until the stream has done the work. Nobody else touches it meanwhile.
    /// 2. No block of `recv` overlaps one of `send`.
    /// 3. The stream is not destroyed before it has done the work.
    pub unsafe fn enqueue_untyped_v(&self, call: &UntypedV<'_>, stream: M::Stream<'_>) -> Result<(), Error> {
        let calls = on_stream(self, call, stream)?;
        // Buffers and stream are the caller's to keep (obligations 1 to 3).
        Group::collect(|group| add_all(group, self, calls, M::raw(stream)))
    }
}

impl<'env, M: Init<Unit = u32> + StreamMachine> Group<'env, M> {
    /// Adds [`DeviceCommunicator::all_to_all_v`](crate::DeviceCommunicator::all_to_all_v).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn all_to_all_v<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        send_blocks: Blocks<'_>,
        recv: DeviceSliceMut<'env, T>,
        recv_blocks: Blocks<'_>,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let (send, recv) = ((send.into(), send_blocks), (recv.into(), recv_blocks));
        let call = UntypedV::of_spans::<T>(send, recv, communicator.size()).map_err(ArgumentError::from)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped_v(communicator, &call, stream) }
    }

    /// Adds an all-to-all-v on untyped memory.
    ///
    /// # Errors
    /// Wrong arguments.
    ///
    /// # Safety
    /// 1. As [`DeviceCommunicator::enqueue_untyped_v`](crate::DeviceCommunicator::enqueue_untyped_v).
    pub unsafe fn add_untyped_v(
        &mut self,
        communicator: &'env Comm<M>,
        call: &UntypedV<'_>,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let calls = on_stream(communicator, call, stream)?;
        add_all(self, communicator, calls, M::raw(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such a block was taken for an empty one.
    #[test]
    fn a_block_that_wraps_is_refused_with_its_own_numbers() {
        for displ in [usize::MAX, usize::MAX - 1, 3] {
            let blocks = Blocks { counts: &[2], displs: &[displ] };
            let refused = blocks.check("send", 1, 4);
            let expected = BlocksError::Range { which: "send", rank: Rank(0), count: 2, displ, actual: 4 };
            assert_eq!(refused, Err(expected));
        }
        let nothing = Blocks { counts: &[0], displs: &[usize::MAX] };
        assert_eq!(nothing.check("send", 1, 4), Ok(()));
    }
}
