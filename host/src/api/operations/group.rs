//! The operations of [`Group`]: each is added, and runs when the group ends.

use super::untyped::Untyped;
use crate::api::communicator::Communicator;
use crate::api::error::Error;
use crate::api::group::Group;
use crate::api::operator::ReduceOp;
use oxccl_shared::reduce::Element;
use std::ptr;

impl<'env> Group<'env> {
    /// Adds [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn all_reduce<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_reduce(send.into(), recv.into(), op)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        buffer: &'env mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_reduce_in_place(buffer.into(), op)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::all_gather`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn all_gather<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_gather(send.into(), recv.into())?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::all_gather_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn all_gather_in_place<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        buffer: &'env mut [T],
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_gather_in_place(buffer.into())?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = communicator.ranks().reduce_scatter(send.into(), recv.into(), op)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::reduce_scatter_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        buffer: &'env mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = communicator.ranks().reduce_scatter_in_place(buffer.into(), op)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::broadcast`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn broadcast<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let call = communicator.ranks().broadcast(send.into(), recv.into(), root)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::broadcast_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn broadcast_in_place<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        buffer: &'env mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let call = communicator.ranks().broadcast_in_place(buffer.into(), root)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::reduce`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn reduce<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let call = communicator.ranks().reduce(send.into(), recv.into(), op, root)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::reduce_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn reduce_in_place<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        buffer: &'env mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let call = communicator.ranks().reduce_in_place(buffer.into(), op, root)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::send`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn send<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        peer: u32,
    ) -> Result<(), Error> {
        let call = communicator.ranks().send(send.into(), peer)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::recv`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn recv<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        recv: &'env mut [T],
        peer: u32,
    ) -> Result<(), Error> {
        let call = communicator.ranks().recv(recv.into(), peer)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn all_to_all<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
    ) -> Result<(), Error> {
        let call = communicator.ranks().all_to_all(send.into(), recv.into())?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::gather`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn gather<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let call = communicator.ranks().gather(send.into(), recv.into(), root)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds [`Communicator::scatter`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn scatter<T: Element>(
        &mut self,
        communicator: &'env Communicator,
        send: &'env [T],
        recv: &'env mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let call = communicator.ranks().scatter(send.into(), recv.into(), root)?;
        // SAFETY: (1, 2) as for the communicator's method; the borrows last for `'env`, which outlives the group.
        unsafe { self.add_untyped(communicator, &call) }
    }

    /// Adds a barrier.
    ///
    /// # Errors
    /// None of its own; what happens is the group's result.
    pub fn barrier(&mut self, communicator: &'env Communicator) -> Result<(), Error> {
        // SAFETY: (1) a barrier touches no buffer.
        unsafe { self.add_untyped(communicator, &Untyped::barrier()) }
    }

    /// Adds a call on untyped memory.
    ///
    /// # Errors
    /// Invalid arguments.
    ///
    /// # Safety
    /// 1. As [`Communicator::run_untyped`], until the group has run.
    pub unsafe fn add_untyped(
        &mut self,
        communicator: &'env Communicator,
        call: &Untyped,
    ) -> Result<(), Error> {
        let call = call.check(communicator.member.rank, communicator.size())?;
        self.add(communicator, call, ptr::null_mut());
        Ok(())
    }
}
