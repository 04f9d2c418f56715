//! The operations of [`Calls`]: each is added to the operation that starts.

use super::all_to_all_v::{Blocks, UntypedV, on_cpu};
use super::shapes::Ranks;
use super::untyped::Untyped;
#[cfg(doc)]
use crate::api::communicator::Communicator;
use crate::api::error::{ArgumentError, Error};
use crate::api::operator::ReduceOp;
use crate::api::requests::Calls;
use oxccl_shared::reduce::Element;

impl<'env> Calls<'env> {
    /// Adds [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn all_reduce<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = self.ranks().all_reduce(send.into(), recv.into(), op)?;
        self.push(&call)
    }

    /// Adds [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        buffer: &'env mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = self.ranks().all_reduce_in_place(buffer.into(), op)?;
        self.push(&call)
    }

    /// Adds [`Communicator::all_gather`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn all_gather<T: Element>(&mut self, send: &'env [T], recv: &'env mut [T]) -> Result<(), Error> {
        let call = self.ranks().all_gather(send.into(), recv.into())?;
        self.push(&call)
    }

    /// Adds [`Communicator::all_gather_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn all_gather_in_place<T: Element>(&mut self, buffer: &'env mut [T]) -> Result<(), Error> {
        let call = self.ranks().all_gather_in_place(buffer.into())?;
        self.push(&call)
    }

    /// Adds [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce_scatter(send.into(), recv.into(), op)?;
        self.push(&call)
    }

    /// Adds [`Communicator::reduce_scatter_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buffer: &'env mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce_scatter_in_place(buffer.into(), op)?;
        self.push(&call)
    }

    /// Adds [`Communicator::broadcast`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn broadcast<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let call = self.ranks().broadcast(send.into(), recv.into(), root)?;
        self.push(&call)
    }

    /// Adds [`Communicator::broadcast_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn broadcast_in_place<T: Element>(&mut self, buffer: &'env mut [T], root: u32) -> Result<(), Error> {
        let call = self.ranks().broadcast_in_place(buffer.into(), root)?;
        self.push(&call)
    }

    /// Adds [`Communicator::reduce`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn reduce<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce(send.into(), recv.into(), op, root)?;
        self.push(&call)
    }

    /// Adds [`Communicator::reduce_in_place`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn reduce_in_place<T: Element>(
        &mut self,
        buffer: &'env mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce_in_place(buffer.into(), op, root)?;
        self.push(&call)
    }

    /// Adds [`Communicator::send`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn send<T: Element>(&mut self, send: &'env [T], peer: u32) -> Result<(), Error> {
        let call = self.ranks().send(send.into(), peer)?;
        self.push(&call)
    }

    /// Adds [`Communicator::recv`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn recv<T: Element>(&mut self, recv: &'env mut [T], peer: u32) -> Result<(), Error> {
        let call = self.ranks().recv(recv.into(), peer)?;
        self.push(&call)
    }

    /// Adds [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn all_to_all<T: Element>(&mut self, send: &'env [T], recv: &'env mut [T]) -> Result<(), Error> {
        let call = self.ranks().all_to_all(send.into(), recv.into())?;
        self.push(&call)
    }

    /// Adds [`Communicator::gather`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn gather<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let call = self.ranks().gather(send.into(), recv.into(), root)?;
        self.push(&call)
    }

    /// Adds [`Communicator::scatter`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn scatter<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let call = self.ranks().scatter(send.into(), recv.into(), root)?;
        self.push(&call)
    }

    /// Adds a barrier.
    ///
    /// # Errors
    /// None of its own; what happens is the request's result.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.push(&Untyped::barrier())
    }

    /// Adds [`Communicator::all_to_all_v`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &'env [T],
        send_blocks: Blocks<'_>,
        recv: &'env mut [T],
        recv_blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let (send, recv) = ((send.into(), send_blocks), (recv.into(), recv_blocks));
        let call = UntypedV::of_spans::<T>(send, recv, self.ranks().nranks).map_err(ArgumentError::from)?;
        let calls = on_cpu(self.ranks(), &call)?;
        self.extend(calls)
    }

    /// Adds [`Communicator::all_gather_v`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn all_gather_v<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let calls = self.ranks().all_gather_v(send.into(), recv.into(), blocks)?;
        self.extend(calls)
    }

    /// Adds [`Communicator::reduce_scatter_v`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the request's own result.
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        blocks: Blocks<'_>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let calls = self.ranks().reduce_scatter_v(send.into(), recv.into(), blocks, op)?;
        self.extend(calls)
    }

    /// Adds a call on untyped memory.
    ///
    /// # Errors
    /// Wrong arguments.
    ///
    /// # Safety
    /// 1. As [`Communicator::run_untyped`], until the request is done.
    pub unsafe fn untyped(&mut self, call: &Untyped) -> Result<(), Error> {
        self.push(call)
    }

    /// Adds an all-to-all-v on untyped memory.
    ///
    /// # Errors
    /// Wrong arguments.
    ///
    /// # Safety
    /// 1. As [`Communicator::run_untyped_v`], until the request is done.
    pub unsafe fn untyped_v(&mut self, call: &UntypedV<'_>) -> Result<(), Error> {
        let calls = on_cpu(self.ranks(), call)?;
        self.extend(calls)
    }

    fn ranks(&self) -> Ranks {
        let (me, nranks) = self.place();
        Ranks { me, nranks }
    }

    fn push(&mut self, call: &Untyped) -> Result<(), Error> {
        let Ranks { me, nranks } = self.ranks();
        self.add(call.check(me, nranks)?);
        Ok(())
    }
}
