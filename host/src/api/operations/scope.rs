//! The operations of [`Scope`]: each starts, and its request says when it is done.

use super::all_to_all_v::Blocks;
#[cfg(doc)]
use crate::api::communicator::Communicator;
use crate::api::error::Error;
use crate::api::operator::ReduceOp;
use crate::api::requests::{Scope, ScopedRequest};
use oxccl_shared::reduce::Element;

impl<'scope> Scope<'scope, '_> {
    /// Starts [`Communicator::all_reduce`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn all_reduce<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.all_reduce(send, recv, op))
    }

    /// Starts [`Communicator::all_reduce_in_place`]. Its request gives `buffer` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn all_reduce_in_place<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(buffer, |calls, buffer| calls.all_reduce_in_place(buffer, op))
    }

    /// Starts [`Communicator::all_gather`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn all_gather<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.all_gather(send, recv))
    }

    /// Starts [`Communicator::all_gather_in_place`]. Its request gives `buffer` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn all_gather_in_place<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(buffer, |calls, buffer| calls.all_gather_in_place(buffer))
    }

    /// Starts [`Communicator::reduce_scatter`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn reduce_scatter<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.reduce_scatter(send, recv, op))
    }

    /// Starts [`Communicator::reduce_scatter_in_place`]. Its request gives `buffer` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn reduce_scatter_in_place<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(buffer, |calls, buffer| calls.reduce_scatter_in_place(buffer, op))
    }

    /// Starts [`Communicator::broadcast`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn broadcast<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
        root: u32,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.broadcast(send, recv, root))
    }

    /// Starts [`Communicator::broadcast_in_place`]. Its request gives `buffer` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn broadcast_in_place<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        root: u32,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(buffer, |calls, buffer| calls.broadcast_in_place(buffer, root))
    }

    /// Starts [`Communicator::reduce`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn reduce<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.reduce(send, recv, op, root))
    }

    /// Starts [`Communicator::reduce_in_place`]. Its request gives `buffer` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn reduce_in_place<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(buffer, |calls, buffer| calls.reduce_in_place(buffer, op, root))
    }

    /// Starts [`Communicator::send`].
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn send<T: Element>(
        &'scope self,
        send: &'scope [T],
        peer: u32,
    ) -> Result<ScopedRequest<'scope, ()>, Error> {
        self.group(|calls| calls.send(send, peer))
    }

    /// Starts [`Communicator::recv`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn recv<T: Element>(
        &'scope self,
        recv: &'scope mut [T],
        peer: u32,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.recv(recv, peer))
    }

    /// Starts [`Communicator::all_to_all`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn all_to_all<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.all_to_all(send, recv))
    }

    /// Starts [`Communicator::gather`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn gather<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
        root: u32,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.gather(send, recv, root))
    }

    /// Starts [`Communicator::scatter`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn scatter<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
        root: u32,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.scatter(send, recv, root))
    }

    /// Starts [`Communicator::all_to_all_v`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn all_to_all_v<T: Element>(
        &'scope self,
        send: &'scope [T],
        send_blocks: Blocks<'_>,
        recv: &'scope mut [T],
        recv_blocks: Blocks<'_>,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.all_to_all_v(send, send_blocks, recv, recv_blocks))
    }

    /// Starts [`Communicator::all_gather_v`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn all_gather_v<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
        blocks: Blocks<'_>,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.all_gather_v(send, recv, blocks))
    }

    /// Starts [`Communicator::reduce_scatter_v`]. Its request gives `recv` back.
    ///
    /// # Errors
    /// Wrong arguments, as there; too many operations in flight. Everything else is the request's own result.
    pub fn reduce_scatter_v<T: Element>(
        &'scope self,
        send: &'scope [T],
        recv: &'scope mut [T],
        blocks: Blocks<'_>,
        op: ReduceOp,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        self.begin(recv, |calls, recv| calls.reduce_scatter_v(send, recv, blocks, op))
    }

    /// Starts a barrier.
    ///
    /// # Errors
    /// Too many operations in flight. Everything else is the request's own result.
    pub fn barrier(&'scope self) -> Result<ScopedRequest<'scope, ()>, Error> {
        self.group(|calls| calls.barrier())
    }
}
