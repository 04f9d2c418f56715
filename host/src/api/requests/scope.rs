//! Operations in flight that borrow their buffers.

use super::calls::Calls;
use crate::api::communicator::Communicator;
use crate::api::error::Error;
use crate::machine::cpu::{Failure, Flights, Owner, Ticket};
use std::marker::PhantomData;
use std::panic::resume_unwind;

/// Starts operations of one communicator that are over when the scope ends; [`Communicator::overlap`] makes it.
///
/// Its methods are those of the communicator, but return a [`ScopedRequest`] at once. What is borrowed for them stays borrowed as long
/// as the scope, except the output, which [`ScopedRequest::wait`] gives back.
pub struct Scope<'scope, 'env: 'scope> {
    communicator: &'env Communicator,
    /// Its number among the communicator's.
    number: u64,
    /// As for [`std::thread::Scope`]: neither longer nor shorter.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// An operation in flight, whose output is an `O` once it is over.
///
/// Dropped or forgotten, it goes on; the end of the scope waits for it and reports its error.
#[must_use = "the scope's end waits for it too, and reports its error"]
pub struct ScopedRequest<'scope, O = ()> {
    communicator: &'scope Communicator,
    ticket: Ticket,
    output: RawOutput,
    /// What the output was borrowed from.
    borrowed: PhantomData<O>,
}

/// An output while the operation has it.
#[derive(Clone, Copy)]
struct RawOutput {
    start: *mut (),
    len: usize,
}

/// What an operation gives back: nothing, or the slice that it was given.
pub trait Output: sealed::Sealed {}

impl Output for () {}

impl<T> Output for &mut [T] {}

mod sealed {
    /// From the parts of what was taken.
    pub trait Sealed: Sized {
        /// # Safety
        /// 1. The parts are those of a `Self` that nobody else has any more.
        unsafe fn from_parts(start: *mut (), len: usize) -> Self;
    }

    impl Sealed for () {
        unsafe fn from_parts(_: *mut (), _: usize) {}
    }

    impl<T> Sealed for &mut [T] {
        unsafe fn from_parts(start: *mut (), len: usize) -> Self {
            // SAFETY: obligation 1.
            unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }
        }
    }
}

impl Communicator {
    /// Runs `work`, which may start operations and compute while they are in flight; returns when all of them are over.
    ///
    /// Operations in flight make progress while the thread is in a call of the library: in `test` and `wait` of any request, in
    /// operations of any communicator. A long computation calls [`ScopedRequest::test`] now and then.
    ///
    /// Collectives of a communicator run in the order in which they were started, by requests and by calls that wait; so every rank
    /// starts them in the same order. Sends and receives that are started one after another make progress together.
    ///
    /// # Errors
    /// That of `work`; else the first error of an operation that was not waited for, as [`Communicator`]'s operations have them.
    ///
    /// # Panics
    /// If `work` panics. The communicator is aborted then.
    ///
    /// # Examples
    /// ```
    /// use oxccl::{Communicator, Error, ReduceOp};
    ///
    /// # fn compute() {}
    /// fn step(comm: &Communicator, gradient: &[f32], sum: &mut [f32], halo: &mut [f32]) -> Result<(), Error> {
    ///     comm.overlap(|scope| {
    ///         let reduced = scope.all_reduce(gradient, sum, ReduceOp::SUM)?;
    ///         scope.broadcast_in_place(halo, 0)?;
    ///         while !reduced.test()? {
    ///             compute();
    ///         }
    ///         let sum = reduced.wait()?;
    ///         println!("{}", sum[0]);
    ///         // The end waits for the broadcast.
    ///         Ok(())
    ///     })
    /// }
    ///
    /// let comm = Communicator::builder().ranks(1).build()?;
    /// let mut sum = [0.0; 4];
    /// step(&comm, &[1.0; 4], &mut sum, &mut [0.0; 2])?;
    /// assert_eq!(sum, [1.0; 4]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// An operation's output cannot be used before it is over:
    /// ```compile_fail,E0502
    /// # fn step(comm: &oxccl::Communicator, gradient: &[f32], sum: &mut [f32]) -> Result<(), oxccl::Error> {
    /// comm.overlap(|scope| {
    ///     let reduced = scope.all_reduce(gradient, sum, oxccl::ReduceOp::SUM)?;
    ///     println!("{}", sum[0]);
    ///     reduced.wait().map(drop)
    /// })
    /// # }
    /// ```
    ///
    /// Nor can a buffer be one that ends before the scope:
    /// ```compile_fail,E0597
    /// # fn step(comm: &oxccl::Communicator, sum: &mut [f32]) -> Result<(), oxccl::Error> {
    /// comm.overlap(|scope| {
    ///     let gradient = vec![1.0; sum.len()];
    ///     let reduced = scope.all_reduce(&gradient, sum, oxccl::ReduceOp::SUM)?;
    ///     std::mem::forget(reduced);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn overlap<'env, R>(
        &'env self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let number = Flights(self.cell()).begin_scope().map_err(|occupied| self.occupied(occupied))?;
        let scope = Scope { communicator: self, number, scope: PhantomData, env: PhantomData };
        let end = End { communicator: self, number };
        let result = work(&scope);
        let ended = end.reached();
        result.and_then(|result| ended.map(|()| result))
    }

    /// The error of an operation that was in flight; continues its panic.
    pub(super) fn ended(&self, result: Result<(), Failure>) -> Result<(), Error> {
        match result {
            Ok(()) => Ok(()),
            Err(Failure::Run(error)) => Err(self.error(error)),
            Err(Failure::Panic(payload)) => resume_unwind(payload),
        }
    }
}

/// The end of a scope, which comes whether `work` returns or panics.
struct End<'a> {
    communicator: &'a Communicator,
    number: u64,
}

impl End<'_> {
    /// Waits until nothing of the scope is in flight.
    fn wait(&self) -> Result<(), Failure> {
        match Flights(self.communicator.cell()).end_scope(self.number) {
            Ok(result) => result,
            // The buffers' borrows end here. The scope began on this thread and outside of operations, so this cannot be.
            Err(_) => std::process::abort(),
        }
    }

    fn reached(self) -> Result<(), Error> {
        let (communicator, result) = (self.communicator, self.wait());
        std::mem::forget(self);
        communicator.ended(result)
    }
}

impl Drop for End<'_> {
    /// Others wait for what this rank does not call any more.
    fn drop(&mut self) {
        self.communicator.abort();
        drop(self.wait());
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts several calls as one operation: collectives in order, then sends and receives all at once.
    ///
    /// # Errors
    /// That of `add`, wrong arguments for example: nothing is started then. Too many operations in flight.
    pub fn group(
        &'scope self,
        add: impl FnOnce(&mut Calls<'scope>) -> Result<(), Error>,
    ) -> Result<ScopedRequest<'scope, ()>, Error> {
        let output = RawOutput { start: std::ptr::null_mut(), len: 0 };
        self.start(output, add)
    }

    /// Starts what `add` makes of a buffer, which the request gives back.
    pub(in crate::api) fn begin<T>(
        &'scope self,
        output: &'scope mut [T],
        add: impl FnOnce(&mut Calls<'scope>, &'scope mut [T]) -> Result<(), Error>,
    ) -> Result<ScopedRequest<'scope, &'scope mut [T]>, Error> {
        let (start, len) = (output.as_mut_ptr(), output.len());
        self.start(RawOutput { start: start.cast(), len }, |calls| {
            // SAFETY: it was given for as long as the scope, and the request gives it back only when the operation is over.
            add(calls, unsafe { std::slice::from_raw_parts_mut(start, len) })
        })
    }

    fn start<O>(
        &'scope self,
        output: RawOutput,
        add: impl FnOnce(&mut Calls<'scope>) -> Result<(), Error>,
    ) -> Result<ScopedRequest<'scope, O>, Error> {
        let communicator = self.communicator;
        let flights = Flights(communicator.cell());
        let raw = flights.spare_calls().map_err(|occupied| communicator.occupied(occupied))?;
        let mut calls = Calls::new((communicator.member.rank, communicator.size()), raw);
        add(&mut calls)?;
        // SAFETY: (1) the buffers are borrowed for as long as the scope, whose end waits for the operation.
        let started = unsafe { flights.start(calls.into_raw(), Owner::Scope(self.number)) };
        let ticket = started.map_err(|error| communicator.not_started(error))?;
        Ok(ScopedRequest { communicator, ticket, output, borrowed: PhantomData })
    }

    /// Waits until everything that the scope has started is over. Requests stay as they are.
    ///
    /// # Errors
    /// The first one of an operation whose request was not waited for.
    pub fn wait_all(&self) -> Result<(), Error> {
        let communicator = self.communicator;
        let error = Flights(communicator.cell()).wait_for_scope(self.number);
        let error = error.map_err(|occupied| communicator.occupied(occupied))?;
        error.map_or(Ok(()), |error| Err(communicator.error(error)))
    }
}

impl<O: Output> ScopedRequest<'_, O> {
    /// Advances what is in flight on this thread, and says whether this operation is over. Does not wait.
    ///
    /// # Errors
    /// The operation's.
    pub fn test(&self) -> Result<bool, Error> {
        let (communicator, flights) = (self.communicator, Flights(self.communicator.cell()));
        let is_over = flights.test(self.ticket).map_err(|occupied| communicator.occupied(occupied))?;
        let error = flights.error(self.ticket).map_err(|occupied| communicator.occupied(occupied))?;
        error.map_or(Ok(is_over != Some(false)), |error| Err(communicator.error(error)))
    }

    /// Waits until the operation is over, and gives its output back.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(self) -> Result<O, Error> {
        let (communicator, flights) = (self.communicator, Flights(self.communicator.cell()));
        let taken = flights.wait(self.ticket).map_err(|occupied| communicator.occupied(occupied))?;
        if let Some((result, _)) = taken {
            communicator.ended(result)?;
        }
        let RawOutput { start, len } = self.output;
        // SAFETY: (1) they are those of the output that the operation was given, which is over.
        Ok(unsafe { O::from_parts(start, len) })
    }

    /// Advances what is in flight on this thread, and says which of these operations is over, if one is.
    ///
    /// # Errors
    /// Of an operation that failed.
    pub fn test_any(requests: &[Self]) -> Result<Option<usize>, Error> {
        for (at, request) in requests.iter().enumerate() {
            if request.test()? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Waits until one of these operations is over, and says which; none of none. They may be of different communicators.
    ///
    /// # Errors
    /// Of an operation that failed.
    pub fn wait_any(requests: &[Self]) -> Result<Option<usize>, Error> {
        if requests.is_empty() {
            return Ok(None);
        }
        let operations =
            || requests.iter().map(|request| (Flights(request.communicator.cell()), request.ticket));
        Flights::wait_any(operations)
            .map_err(|(at, occupied)| requests[at].communicator.occupied(occupied))?;
        ScopedRequest::test_any(requests)
    }

    /// Waits for all of these operations, and gives their outputs back.
    ///
    /// # Errors
    /// The first one; all are over then too.
    pub fn wait_all(requests: impl IntoIterator<Item = Self>) -> Result<Vec<O>, Error> {
        let results: Vec<_> = requests.into_iter().map(ScopedRequest::wait).collect();
        results.into_iter().collect()
    }
}
