//! The operations of [`Communicator`]: each returns when this rank's part of it is done.

use super::shapes::Ranks;
use super::untyped::Untyped;
use crate::api::communicator::Communicator;
#[cfg(doc)]
use crate::api::error::ArgumentError;
use crate::api::error::Error;
use crate::api::operator::ReduceOp;
use oxccl_shared::reduce::Element;
use std::ptr;

impl Communicator {
    /// Reduces all ranks' `send` into every rank's `recv`: element i of `recv` becomes `op` over element i of every rank's
    /// `send`.
    ///
    /// `send` and `recv` hold the same number of elements, equal on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the buffers differ in length; [`ArgumentError::ScalarType`] if the operator's
    /// scalar is not a `T`; for the rest see [`Communicator`].
    pub fn all_reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let call = self.ranks().all_reduce(send.into(), recv.into(), op)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Reduces all ranks' `buffer` into every rank's `buffer`.
    ///
    /// `buffer` holds the same number of elements on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::ScalarType`] if the operator's scalar is not a `T`; for the rest see [`Communicator`].
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let call = self.ranks().all_reduce_in_place(buffer.into(), op)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Gathers every rank's `send` on every rank: `send` of rank r becomes block r of `recv`.
    ///
    /// `send` holds the same number of elements on every rank, `recv` that number times the number of ranks.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if `recv` has another length; for the rest see [`Communicator`].
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        let call = self.ranks().all_gather(send.into(), recv.into())?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Gathers every rank's block on every rank: this rank's input is block `rank` of `buffer`, which ends as all ranks'
    /// blocks.
    ///
    /// `buffer` holds one block for each rank, of equal length, the same on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::NotDivisible`] if the ranks cannot share `buffer` evenly; for the rest see [`Communicator`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<(), Error> {
        let call = self.ranks().all_gather_in_place(buffer.into())?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Reduces all ranks' `send` and scatters the result: block r of it goes to `recv` of rank r.
    ///
    /// `recv` holds the same number of elements on every rank, `send` that number times the number of ranks.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if `send` has another length; [`ArgumentError::ScalarType`] if the operator's scalar
    /// is not a `T`; for the rest see [`Communicator`].
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let call = self.ranks().reduce_scatter(send.into(), recv.into(), op)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Reduces all ranks' `buffer`; this rank's block of `buffer` becomes its block of the result. The content of the
    /// other blocks is then undefined.
    ///
    /// `buffer` holds one block for each rank, of equal length, the same on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::NotDivisible`] if the ranks cannot share `buffer` evenly; [`ArgumentError::ScalarType`] if the
    /// operator's scalar is not a `T`; for the rest see [`Communicator`].
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let call = self.ranks().reduce_scatter_in_place(buffer.into(), op)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Copies the root's `send` to every rank's `recv`, the root's included.
    ///
    /// `recv` holds the same number of elements on every rank, and so does the root's `send`; elsewhere `send` is ignored and
    /// may be empty.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the root's buffers differ in length; [`ArgumentError::NoSuchRank`] if there is no
    /// rank `root`; for the rest see [`Communicator`].
    pub fn broadcast<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<(), Error> {
        let call = self.ranks().broadcast(send.into(), recv.into(), root)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Copies the root's `buffer` to every rank's.
    ///
    /// `buffer` holds the same number of elements on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::NoSuchRank`] if there is no rank `root`; for the rest see [`Communicator`].
    pub fn broadcast_in_place<T: Element>(&self, buffer: &mut [T], root: u32) -> Result<(), Error> {
        let call = self.ranks().broadcast_in_place(buffer.into(), root)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Reduces all ranks' `send` into the root's `recv`.
    ///
    /// `send` holds the same number of elements on every rank, and so does the root's `recv`; elsewhere `recv` is not written
    /// and may be empty.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the root's buffers differ in length; [`ArgumentError::NoSuchRank`] if there is no
    /// rank `root`; [`ArgumentError::ScalarType`] if the operator's scalar is not a `T`; for the rest see [`Communicator`].
    pub fn reduce<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce(send.into(), recv.into(), op, root)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Reduces all ranks' `buffer` into the root's; the others keep theirs.
    ///
    /// `buffer` holds the same number of elements on every rank.
    ///
    /// # Errors
    /// [`ArgumentError::NoSuchRank`] if there is no rank `root`; [`ArgumentError::ScalarType`] if the operator's scalar is
    /// not a `T`; for the rest see [`Communicator`].
    pub fn reduce_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let call = self.ranks().reduce_in_place(buffer.into(), op, root)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Sends `send` to `peer`, which must receive as many bytes. Returns when `send` may be changed, which for a long message
    /// is when the peer has received it, or begun to: two ranks that both send first, and receive then, may wait for each other.
    ///
    /// Messages between two ranks are matched in the order of the calls; the types at the two ends may differ, the bytes may
    /// not.
    ///
    /// # Errors
    /// [`ArgumentError::NoSuchRank`] if there is no rank `peer`; for the rest see [`Communicator`].
    pub fn send<T: Element>(&self, send: &[T], peer: u32) -> Result<(), Error> {
        let call = self.ranks().send(send.into(), peer)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Receives into `recv` from `peer`, which must send as many bytes.
    ///
    /// Messages between two ranks are matched in the order of the calls; the types at the two ends may differ, the bytes may
    /// not.
    ///
    /// # Errors
    /// [`ArgumentError::NoSuchRank`] if there is no rank `peer`; for the rest see [`Communicator`].
    pub fn recv<T: Element>(&self, recv: &mut [T], peer: u32) -> Result<(), Error> {
        let call = self.ranks().recv(recv.into(), peer)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Exchanges blocks between all pairs: block j of rank i's `send` becomes block i of rank j's `recv`.
    ///
    /// `send` and `recv` hold one block for each rank, of equal length, the same on every rank. They must not be the same
    /// memory.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the buffers differ in length; [`ArgumentError::NotDivisible`] if the ranks cannot
    /// share them evenly; [`ArgumentError::InPlace`] if they are the same memory; for the rest see [`Communicator`].
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        let call = self.ranks().all_to_all(send.into(), recv.into())?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Gathers every rank's `send` at the root: `send` of rank r becomes block r of the root's `recv`.
    ///
    /// `send` holds the same number of elements on every rank, the root's `recv` that number times the number of ranks;
    /// elsewhere `recv` is ignored and may be empty.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the root's `recv` has another length; [`ArgumentError::NoSuchRank`] if there is no
    /// rank `root`; for the rest see [`Communicator`].
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<(), Error> {
        let call = self.ranks().gather(send.into(), recv.into(), root)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Scatters the root's `send`: block r of it becomes `recv` of rank r.
    ///
    /// `recv` holds the same number of elements on every rank, the root's `send` that number times the number of ranks;
    /// elsewhere `send` is ignored and may be empty.
    ///
    /// # Errors
    /// [`ArgumentError::BufferLength`] if the root's `send` has another length; [`ArgumentError::NoSuchRank`] if there is no
    /// rank `root`; for the rest see [`Communicator`].
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<(), Error> {
        let call = self.ranks().scatter(send.into(), recv.into(), root)?;
        // SAFETY: (1, 2) the pointers come from slices, whose lengths were checked against the call's count.
        unsafe { self.run_untyped(&call) }
    }

    /// Waits until every rank has called it.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn barrier(&self) -> Result<(), Error> {
        // SAFETY: (1, 2) a barrier touches no buffer.
        unsafe { self.run_untyped(&Untyped::barrier()) }
    }

    /// Runs a call on untyped memory.
    ///
    /// # Errors
    /// See [`Communicator`].
    ///
    /// # Safety
    /// 1. `send` and `recv` are valid for the shapes of the operation, each where its function uses it.
    /// 2. `recv` equals `send` or, where one of them has n blocks and the other one, the one is this rank's block of the other;
    ///    or they do not overlap. All-to-all has no such form. Nobody else touches them meanwhile.
    pub unsafe fn run_untyped(&self, untyped: &Untyped) -> Result<(), Error> {
        let call = untyped.check(self.member.rank, self.size())?;
        // SAFETY: (1) obligations 1 and 2; (2) no fiber waits for it.
        unsafe { self.run(std::slice::from_ref(&call), &[ptr::null_mut()]) }
    }

    pub(super) fn ranks(&self) -> Ranks {
        Ranks { me: self.member.rank, nranks: self.size() }
    }
}
