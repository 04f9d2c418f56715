//! The operations of [`DeviceCommunicator`](crate::DeviceCommunicator): each is enqueued on a stream and returns.

use super::shapes::Ranks;
use super::untyped::Untyped;
use crate::api::communicator::Comm;
#[cfg(doc)]
use crate::api::error::ArgumentError;
use crate::api::error::Error;
use crate::api::init::Init;
use crate::api::operator::ReduceOp;
use crate::launch::StreamMachine;
use crate::machine::cuda::{DeviceSlice, DeviceSliceMut};
use oxccl_shared::reduce::Element;

impl<M: Init<Unit = u32> + StreamMachine> Comm<M> {
    /// Reduces all ranks' `send` into every rank's `recv`: element i of `recv` becomes `op` over element i of every rank's
    /// `send`.
    ///
    /// `send` and `recv` hold the same number of elements, equal on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the buffers differ in length; [`ArgumentError::ScalarType`] if the operator's
    /// scalar is not a `T`; for the rest see [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn all_reduce<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        op: ReduceOp,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().all_reduce(send.into(), recv.into(), op)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Reduces all ranks' `buffer` into every rank's `buffer`.
    ///
    /// `buffer` holds the same number of elements on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::ScalarType`] if the operator's scalar is not a `T`; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn all_reduce_in_place<T: Element>(
        &self,
        buffer: DeviceSliceMut<'_, T>,
        op: ReduceOp,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().all_reduce_in_place(buffer.into(), op)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Gathers every rank's `send` on every rank: `send` of rank r becomes block r of `recv`.
    ///
    /// `send` holds the same number of elements on every rank, `recv` that number times the number of ranks.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if `recv` has another length; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn all_gather<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().all_gather(send.into(), recv.into())?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Gathers every rank's block on every rank: this rank's input is block `rank` of `buffer`, which ends as all ranks'
    /// blocks.
    ///
    /// `buffer` holds one block for each rank, of equal length, the same on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::NotDivisible`] if the ranks cannot share `buffer` evenly; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn all_gather_in_place<T: Element>(
        &self,
        buffer: DeviceSliceMut<'_, T>,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().all_gather_in_place(buffer.into())?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Reduces all ranks' `send` and scatters the result: block r of it goes to `recv` of rank r.
    ///
    /// `recv` holds the same number of elements on every rank, `send` that number times the number of ranks.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if `send` has another length; [`ArgumentError::ScalarType`] if the operator's scalar
    /// is not a `T`; for the rest see [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn reduce_scatter<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        op: ReduceOp,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce_scatter(send.into(), recv.into(), op)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Reduces all ranks' `buffer`; this rank's block of `buffer` becomes its block of the result. The content of the
    /// other blocks is then undefined.
    ///
    /// `buffer` holds one block for each rank, of equal length, the same on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::NotDivisible`] if the ranks cannot share `buffer` evenly; [`ArgumentError::ScalarType`] if the
    /// operator's scalar is not a `T`; for the rest see [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: DeviceSliceMut<'_, T>,
        op: ReduceOp,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce_scatter_in_place(buffer.into(), op)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Copies the root's `send` to every rank's `recv`, the root's included.
    ///
    /// `recv` holds the same number of elements on every rank, and so does the root's `send`; elsewhere `send` is ignored and
    /// may be empty.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the root's buffers differ in length; [`ArgumentError::NoSuchRank`] if there is no
    /// rank `root`; for the rest see [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn broadcast<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        root: u32,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().broadcast(send.into(), recv.into(), root)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Copies the root's `buffer` to every rank's.
    ///
    /// `buffer` holds the same number of elements on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::NoSuchRank`] if there is no rank `root`; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn broadcast_in_place<T: Element>(
        &self,
        buffer: DeviceSliceMut<'_, T>,
        root: u32,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().broadcast_in_place(buffer.into(), root)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Reduces all ranks' `send` into the root's `recv`.
    ///
    /// `send` holds the same number of elements on every rank, and so does the root's `recv`; elsewhere `recv` is not written
    /// and may be empty.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the root's buffers differ in length; [`ArgumentError::NoSuchRank`] if there is no
    /// rank `root`; [`ArgumentError::ScalarType`] if the operator's scalar is not a `T`; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn reduce<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        op: ReduceOp,
        root: u32,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce(send.into(), recv.into(), op, root)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Reduces all ranks' `buffer` into the root's; the others keep theirs.
    ///
    /// `buffer` holds the same number of elements on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::NoSuchRank`] if there is no rank `root`; [`ArgumentError::ScalarType`] if the operator's scalar is
    /// not a `T`; for the rest see [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn reduce_in_place<T: Element>(
        &self,
        buffer: DeviceSliceMut<'_, T>,
        op: ReduceOp,
        root: u32,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce_in_place(buffer.into(), op, root)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Sends `send` to `peer`, which must receive as many bytes.
    ///
    /// Messages between two ranks are matched in the order of the calls; the types at the two ends may differ, the bytes may
    /// not.
    ///
    /// # Errors
    /// [`ArgumentError::NoSuchRank`] if there is no rank `peer`; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn send<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        peer: u32,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().send(send.into(), peer)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Receives into `recv` from `peer`, which must send as many bytes.
    ///
    /// Messages between two ranks are matched in the order of the calls; the types at the two ends may differ, the bytes may
    /// not.
    ///
    /// # Errors
    /// [`ArgumentError::NoSuchRank`] if there is no rank `peer`; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn recv<T: Element>(
        &self,
        recv: DeviceSliceMut<'_, T>,
        peer: u32,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().recv(recv.into(), peer)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Exchanges blocks between all pairs: block j of rank i's `send` becomes block i of rank j's `recv`.
    ///
    /// `send` and `recv` hold one block for each rank, of equal length, the same on every rank. They must not be the same
    /// memory.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the buffers differ in length; [`ArgumentError::NotDivisible`] if the ranks cannot
    /// share them evenly; [`ArgumentError::InPlace`] if they are the same memory; for the rest see
    /// [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn all_to_all<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().all_to_all(send.into(), recv.into())?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Gathers every rank's `send` at the root: `send` of rank r becomes block r of the root's `recv`.
    ///
    /// `send` holds the same number of elements on every rank, the root's `recv` that number times the number of ranks;
    /// elsewhere `recv` is ignored and may be empty.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the root's `recv` has another length; [`ArgumentError::NoSuchRank`] if there is no
    /// rank `root`; for the rest see [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn gather<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        root: u32,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().gather(send.into(), recv.into(), root)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Scatters the root's `send`: block r of it becomes `recv` of rank r.
    ///
    /// `recv` holds the same number of elements on every rank, the root's `send` that number times the number of ranks;
    /// elsewhere `send` is ignored and may be empty.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the root's `send` has another length; [`ArgumentError::NoSuchRank`] if there is no
    /// rank `root`; for the rest see [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. Until the stream has completed the operation the buffers stay valid, nobody writes its inputs and nobody
    ///    accesses its outputs.
    /// 2. The stream is not destroyed before.
    pub unsafe fn scatter<T: Element>(
        &self,
        send: DeviceSlice<'_, T>,
        recv: DeviceSliceMut<'_, T>,
        root: u32,
        stream: M::Stream<'_>,
    ) -> Result<(), Error> {
        let call = self.ranks().scatter(send.into(), recv.into(), root)?;
        // SAFETY: (1 to 3) the addresses come from views, whose lengths were checked against the call's count; obligations 1 and 2.
        unsafe { self.enqueue_untyped(&call, stream) }
    }

    /// Enqueues a barrier: later work on the stream starts after every rank's stream has reached it.
    ///
    /// # Errors
    /// See [`DeviceCommunicator`](crate::DeviceCommunicator).
    pub fn barrier(&self, stream: M::Stream<'_>) -> Result<(), Error> {
        // SAFETY: (1, 2) a barrier touches no buffer; (3) a stream reference says that the stream lives, and the driver does what is on
        // a stream even if it is destroyed then.
        unsafe { self.enqueue_untyped(&Untyped::barrier(), stream) }
    }

    /// Enqueues a call on untyped memory. Its pointers are addresses in this GPU's memory, aligned to the elements' size.
    ///
    /// # Errors
    /// See [`DeviceCommunicator`](crate::DeviceCommunicator).
    ///
    /// # Safety
    /// 1. `send` and `recv` are memory that this GPU can use, valid for the shapes of the operation, each where its function uses it,
    ///    until the stream has done the work.
    /// 2. `recv` equals `send` or, where one of them has n blocks and the other one, the one is this rank's block of the other;
    ///    or they do not overlap. All-to-all has no such form. Nobody else touches them meanwhile.
    /// 3. The stream is not destroyed before it has done the work.
    pub unsafe fn enqueue_untyped(&self, call: &Untyped, stream: M::Stream<'_>) -> Result<(), Error> {
        let call = self.check(call, stream)?;
        // SAFETY: (1) obligations 1 and 2; (2) obligation 3, and the stream was checked to be of this GPU.
        unsafe { self.run(std::slice::from_ref(&call), &[M::raw(stream)]) }
    }

    pub(super) fn ranks(&self) -> Ranks {
        Ranks { me: self.member.rank, nranks: self.size() }
    }
}
