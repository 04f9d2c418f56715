//! Operations in flight that own their buffers.

use super::calls::Calls;
use crate::api::communicator::Communicator;
use crate::api::error::{ArgumentError, Error};
use crate::machine::cpu::{Flights, Owner, Ticket};
use oxccl_shared::sync::{Sys, Word};
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// An operation in flight that owns its buffers, a `B`; [`Communicator::start`] makes it.
///
/// It borrows nothing, so a structure may have it beside its communicator, which is named again to test and to wait. Dropped or
/// forgotten, it goes on; the buffers are freed once it is over.
#[must_use = "it goes on without it, and the result is lost"]
pub struct Request<B> {
    ticket: Ticket,
    /// Nonzero once this is dropped. Writer: this.
    dropped: Arc<Word<u32, Sys>>,
    buffers: PhantomData<fn() -> B>,
}

impl Communicator {
    /// Starts an operation on buffers that it owns until [`Request::wait`] gives them back. `add` makes its calls of them.
    ///
    /// For how operations in flight make progress and in which order they run, see [`Communicator::overlap`]. While one is in flight the
    /// communicator belongs to this thread: others are refused.
    ///
    /// # Errors
    /// That of `add`, wrong arguments for example: nothing is started then. Too many operations in flight.
    ///
    /// # Examples
    /// ```
    /// use oxccl::{Communicator, Error, ReduceOp, Request};
    ///
    /// struct Average {
    ///     comm: Communicator,
    ///     pending: Option<Request<(Vec<f64>, Vec<f64>)>>,
    /// }
    ///
    /// impl Average {
    ///     fn begin(&mut self, values: Vec<f64>) -> Result<(), Error> {
    ///         let buffers = (values, vec![0.0; 3]);
    ///         self.pending = Some(self.comm.start(buffers, |calls, (send, recv)| {
    ///             calls.all_reduce(send, recv, ReduceOp::AVG)
    ///         })?);
    ///         Ok(())
    ///     }
    ///
    ///     fn end(&mut self) -> Result<Vec<f64>, Error> {
    ///         let (_, averages) = self.pending.take().expect("begun").wait(&self.comm)?;
    ///         Ok(averages)
    ///     }
    /// }
    ///
    /// let mut average = Average { comm: Communicator::builder().ranks(1).build()?, pending: None };
    /// average.begin(vec![1.0, 2.0, 3.0])?;
    /// assert_eq!(average.end()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// What `add` borrows is of the buffers, or lives for ever:
    /// ```compile_fail,E0521
    /// # fn step(comm: &oxccl::Communicator, sum: &mut [f32]) -> Result<(), oxccl::Error> {
    /// let request = comm.start((), |calls, ()| calls.all_reduce_in_place(sum, oxccl::ReduceOp::SUM))?;
    /// request.wait(comm)
    /// # }
    /// ```
    ///
    /// Bindings, whose buffers are only addresses, start with `()` and [`Calls::untyped`].
    pub fn start<B: Send + 'static>(
        &self,
        buffers: B,
        add: impl for<'buffers> FnOnce(&mut Calls<'buffers>, &'buffers mut B) -> Result<(), Error>,
    ) -> Result<Request<B>, Error> {
        let flights = Flights(self.cell());
        let raw = flights.spare_calls().map_err(|occupied| self.occupied(occupied))?;
        let mut calls = Calls::new((self.member.rank, self.size()), raw);
        let mut buffers = Box::new(buffers);
        let place: *mut B = &mut *buffers;
        // SAFETY: the box is not touched until the operation is over, and the borrow goes nowhere but to `calls`, whose lifetime it has.
        add(&mut calls, unsafe { &mut *place })?;
        let dropped = Arc::new(Word::new(0));
        let owner = Owner::Request(buffers, dropped.clone());
        // SAFETY: (1) what was borrowed is in the box, which the operation has until it is over, or lives for ever.
        let started = unsafe { flights.start(calls.into_raw(), owner) };
        let ticket = started.map_err(|error| self.not_started(error))?;
        Ok(Request { ticket, dropped, buffers: PhantomData })
    }
}

impl<B: Send + 'static> Request<B> {
    /// Advances what is in flight on this thread, and says whether this operation of `communicator` is over. Does not wait.
    ///
    /// # Errors
    /// The operation's; [`ArgumentError::OtherRequest`] if it is not one of `communicator`.
    pub fn test(&self, communicator: &Communicator) -> Result<bool, Error> {
        let flights = self.flights(communicator)?;
        let is_over = flights.test(self.ticket).map_err(|occupied| communicator.occupied(occupied))?;
        let error = flights.error(self.ticket).map_err(|occupied| communicator.occupied(occupied))?;
        error.map_or(Ok(is_over != Some(false)), |error| Err(communicator.error(error)))
    }

    /// Waits until the operation of `communicator` is over, and gives the buffers back.
    ///
    /// # Errors
    /// The operation's; [`ArgumentError::OtherRequest`] if it is not one of `communicator`. The buffers are lost then.
    pub fn wait(self, communicator: &Communicator) -> Result<B, Error> {
        let other = || ArgumentError::OtherRequest { rank: communicator.member.rank };
        let flights = self.flights(communicator)?;
        let taken = flights.wait(self.ticket).map_err(|occupied| communicator.occupied(occupied))?;
        let (result, owner) = taken.ok_or_else(other)?;
        communicator.ended(result)?;
        let Owner::Request(buffers, _) = owner else { return Err(other().into()) };
        let buffers: Box<dyn Any> = buffers;
        buffers.downcast().map(|buffers| *buffers).map_err(|_| other().into())
    }

    /// The communicator's operations in flight, of which this is one.
    fn flights<'a>(&self, communicator: &'a Communicator) -> Result<Flights<'a>, Error> {
        let flights = Flights(communicator.cell());
        match flights.is_of(self.ticket, &self.dropped) {
            Ok(true) => Ok(flights),
            Ok(false) => Err(ArgumentError::OtherRequest { rank: communicator.member.rank }.into()),
            Err(occupied) => Err(communicator.occupied(occupied).into()),
        }
    }
}

impl<B> Drop for Request<B> {
    fn drop(&mut self) {
        // RELEASE pairs with ACQUIRE in `Slots::forget_if_dropped`.
        self.dropped.store_release(1);
    }
}
