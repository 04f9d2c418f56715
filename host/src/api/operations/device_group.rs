//! The operations of [`DeviceGroup`](crate::DeviceGroup): each is added, and goes to its stream when the group ends.

use super::untyped::Untyped;
use crate::api::communicator::Comm;
use crate::api::error::Error;
use crate::api::group::Group;
use crate::api::init::Init;
use crate::api::operator::ReduceOp;
use crate::launch::StreamMachine;
use crate::machine::cuda::{DeviceSlice, DeviceSliceMut};
use oxccl_shared::reduce::Element;

impl<'env, M: Init<Unit = u32> + StreamMachine> Group<'env, M> {
    /// Adds [`DeviceCommunicator::all_reduce`](crate::DeviceCommunicator::all_reduce).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn all_reduce<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        recv: DeviceSliceMut<'env, T>,
        op: ReduceOp,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_reduce(send.into(), recv.into(), op)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::all_reduce_in_place`](crate::DeviceCommunicator::all_reduce_in_place).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn all_reduce_in_place<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        buffer: DeviceSliceMut<'env, T>,
        op: ReduceOp,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_reduce_in_place(buffer.into(), op)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::all_gather`](crate::DeviceCommunicator::all_gather).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn all_gather<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        recv: DeviceSliceMut<'env, T>,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_gather(send.into(), recv.into())?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::all_gather_in_place`](crate::DeviceCommunicator::all_gather_in_place).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn all_gather_in_place<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        buffer: DeviceSliceMut<'env, T>,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_gather_in_place(buffer.into())?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::reduce_scatter`](crate::DeviceCommunicator::reduce_scatter).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn reduce_scatter<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        recv: DeviceSliceMut<'env, T>,
        op: ReduceOp,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().reduce_scatter(send.into(), recv.into(), op)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::reduce_scatter_in_place`](crate::DeviceCommunicator::reduce_scatter_in_place).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn reduce_scatter_in_place<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        buffer: DeviceSliceMut<'env, T>,
        op: ReduceOp,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().reduce_scatter_in_place(buffer.into(), op)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::broadcast`](crate::DeviceCommunicator::broadcast).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn broadcast<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        recv: DeviceSliceMut<'env, T>,
        root: u32,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().broadcast(send.into(), recv.into(), root)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::broadcast_in_place`](crate::DeviceCommunicator::broadcast_in_place).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn broadcast_in_place<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        buffer: DeviceSliceMut<'env, T>,
        root: u32,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().broadcast_in_place(buffer.into(), root)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::reduce`](crate::DeviceCommunicator::reduce).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn reduce<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        recv: DeviceSliceMut<'env, T>,
        op: ReduceOp,
        root: u32,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().reduce(send.into(), recv.into(), op, root)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::reduce_in_place`](crate::DeviceCommunicator::reduce_in_place).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn reduce_in_place<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        buffer: DeviceSliceMut<'env, T>,
        op: ReduceOp,
        root: u32,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().reduce_in_place(buffer.into(), op, root)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::send`](crate::DeviceCommunicator::send).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn send<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        peer: u32,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().send(send.into(), peer)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::recv`](crate::DeviceCommunicator::recv).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn recv<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        recv: DeviceSliceMut<'env, T>,
        peer: u32,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().recv(recv.into(), peer)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::all_to_all`](crate::DeviceCommunicator::all_to_all).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn all_to_all<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        recv: DeviceSliceMut<'env, T>,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_to_all(send.into(), recv.into())?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::gather`](crate::DeviceCommunicator::gather).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn gather<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        recv: DeviceSliceMut<'env, T>,
        root: u32,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().gather(send.into(), recv.into(), root)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds [`DeviceCommunicator::scatter`](crate::DeviceCommunicator::scatter).
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    ///
    /// # Safety
    /// 1. As there.
    pub unsafe fn scatter<T: Element>(
        &mut self,
        communicator: &'env Comm<M>,
        send: DeviceSlice<'env, T>,
        recv: DeviceSliceMut<'env, T>,
        root: u32,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.ranks().scatter(send.into(), recv.into(), root)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.add_untyped(communicator, &call, stream) }
    }

    /// Adds a barrier.
    ///
    /// # Errors
    /// Invalid arguments.
    pub fn barrier(&mut self, communicator: &'env Comm<M>, stream: M::Stream<'env>) -> Result<(), Error> {
        // SAFETY: (1) a barrier touches no buffer, and the stream lives for `'env`.
        unsafe { self.add_untyped(communicator, &Untyped::barrier(), stream) }
    }

    /// Adds a call on untyped memory.
    ///
    /// # Errors
    /// Wrong arguments.
    ///
    /// # Safety
    /// 1. As [`DeviceCommunicator::enqueue_untyped`](crate::DeviceCommunicator::enqueue_untyped).
    pub unsafe fn add_untyped(
        &mut self,
        communicator: &'env Comm<M>,
        call: &Untyped,
        stream: M::Stream<'env>,
    ) -> Result<(), Error> {
        let call = communicator.check(call, stream)?;
        self.add(communicator, call, M::raw(stream));
        Ok(())
    }
}
