//! One communicator's operations in flight: a fiber that runs them in order, and whoever waits for them.

use super::fiber::{self, Fiber};
use super::queue::{Failure, IN_FLIGHT_MAX, Over, Owner, Queue, Ticket};
use super::state::Cpu;
use crate::launch::in_flight::{self, Advance, Patience};
use crate::launch::{
    Behind, BehindError, Engine, EngineCell, Fault, Health, Machine, Occupied, RawCall, RawQueue, RunError,
    StartError,
};
use corosensei::CoroutineResult;
use oxccl_shared::abi::Rank;
use oxccl_shared::sync::{Sys, Word};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::Arc;

/// What a communicator has in flight.
pub struct InFlight {
    me: Rank,
    health: Arc<Health>,
    queue: Arc<Queue>,
    /// There while something is in flight.
    fiber: RefCell<Option<Fiber>>,
    /// Whether we are in it.
    is_inside: Cell<bool>,
}

impl InFlight {
    pub(super) fn new(me: Rank, health: Arc<Health>, queue: Arc<Queue>) -> InFlight {
        InFlight { me, health, queue, fiber: RefCell::new(None), is_inside: Cell::new(false) }
    }
}

/// A communicator's operations in flight, for the thread that has them.
#[derive(Clone, Copy)]
pub struct Flights<'a>(pub &'a Arc<EngineCell<Cpu>>);

impl Flights<'_> {
    /// Memory for the calls of an operation.
    ///
    /// # Errors
    /// Somebody else has the engine.
    pub fn spare_calls(self) -> Result<Vec<RawCall>, Occupied> {
        self.0.check().map(|flight| flight.queue.spare_calls())
    }

    /// Starts an operation of these calls behind those in flight, and runs it until it waits.
    ///
    /// # Errors
    /// [`StartError`]; nothing has been started then.
    ///
    /// # Safety
    /// 1. As [`Engine::run`], until the operation is over.
    pub unsafe fn start(self, calls: Vec<RawCall>, owner: Owner) -> Result<Ticket, StartError> {
        let flight = self.outside().map_err(StartError::Occupied)?;
        flight.queue.bury();
        if flight.fiber.borrow().is_none() {
            *flight.fiber.borrow_mut() = Some(self.new_fiber()?);
            self.0.set_in_flight(true);
            in_flight::enter(self.0.clone());
        }
        let pushed = flight.queue.push(calls, owner, flight.me);
        self.0.advance();
        pushed.map_err(|calls| {
            flight.queue.recycle(calls);
            StartError::TooMany { max: IN_FLIGHT_MAX }
        })
    }

    /// For those who may wait, which an operation may not for one behind it.
    ///
    /// # Errors
    /// Somebody else has the engine, or we are in its fiber.
    fn outside(&self) -> Result<&InFlight, Occupied> {
        let flight = self.0.check()?;
        if flight.is_inside.get() { Err(Occupied::Busy) } else { Ok(flight) }
    }

    fn new_fiber(self) -> Result<Fiber, StartError> {
        let cell = self.0.clone();
        let made = fiber::fiber(move |yielder| {
            let yielder = ptr::from_ref(yielder).cast_mut().cast();
            run_all(&mut cell.enter_in_flight(), &cell.flight().queue, yielder);
        });
        made.map_err(|error| StartError::Memory { errno: error.raw_os_error().unwrap_or(0) })
    }

    /// Advances everything in flight on this thread, unless the operation is over. Returns whether it is; none if its result was taken.
    ///
    /// # Errors
    /// Somebody else has the engine.
    pub fn test(self, ticket: Ticket) -> Result<Option<bool>, Occupied> {
        let queue = &self.0.check()?.queue;
        if queue.is_over(ticket) == Some(false) {
            in_flight::advance_all();
        }
        Ok(queue.is_over(ticket))
    }

    /// The error of an operation that is over and whose result has not been taken.
    ///
    /// # Errors
    /// Somebody else has the engine.
    pub fn error(self, ticket: Ticket) -> Result<Option<RunError>, Occupied> {
        self.0.check().map(|flight| flight.queue.error(ticket))
    }

    /// Waits until the operation is over, and takes its result; none if it was taken.
    ///
    /// # Errors
    /// Somebody else has the engine, or the operation asks itself.
    pub fn wait(self, ticket: Ticket) -> Result<Option<Over>, Occupied> {
        self.wait_while(|flight| flight.queue.is_over(ticket) == Some(false))?;
        Ok(self.0.check()?.queue.take(ticket))
    }

    /// Waits until one of these operations is over, each of which is its own communicator's. Of none at all it waits for ever.
    ///
    /// # Errors
    /// As [`Self::wait`], and at which operation.
    pub fn wait_any<I: Iterator<Item = (Self, Ticket)>>(
        operations: impl Fn() -> I,
    ) -> Result<(), (usize, Occupied)> {
        for (at, (flights, _)) in operations().enumerate() {
            flights.outside().map_err(|occupied| (at, occupied))?;
        }
        let is_under_way =
            |(flights, ticket): (Self, Ticket)| flights.0.flight().queue.is_over(ticket) == Some(false);
        let mut patience = Patience::default();
        while operations().all(is_under_way) {
            patience.round();
        }
        for (flights, _) in operations() {
            flights.0.flight().queue.bury();
        }
        Ok(())
    }

    /// Whether the request with this word is that of the operation.
    ///
    /// # Errors
    /// Somebody else has the engine.
    pub fn is_of(self, ticket: Ticket, word: &Arc<Word<u32, Sys>>) -> Result<bool, Occupied> {
        self.0.check().map(|flight| flight.queue.is_of(ticket, word))
    }

    /// The number of a scope that begins.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn begin_scope(self) -> Result<u64, Occupied> {
        self.outside().map(|flight| flight.queue.next_scope())
    }

    /// Waits until all operations of a scope are over, whose results stay. The first error.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_for_scope(self, scope: u64) -> Result<Option<RunError>, Occupied> {
        self.wait_while(|flight| flight.queue.has_any_of(scope))?;
        self.0.check().map(|flight| flight.queue.error_of(scope))
    }

    /// Waits as well, and takes the results; the first failure.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn end_scope(self, scope: u64) -> Result<Result<(), Failure>, Occupied> {
        self.wait_for_scope(scope)?;
        self.0.check().map(|flight| flight.queue.take_all_of(scope))
    }

    fn wait_while(self, is_under_way: impl Fn(&InFlight) -> bool) -> Result<(), Occupied> {
        let flight = self.outside()?;
        let mut patience = Patience::default();
        while is_under_way(flight) {
            patience.round();
        }
        flight.queue.bury();
        Ok(())
    }

    /// As [`GroupMachine::settle`](crate::launch::GroupMachine::settle).
    pub(super) fn settle(self, at_once: bool) -> bool {
        match self.0.check() {
            Ok(flight) if at_once => flight.health.fail(Fault::Aborted, None),
            _ => return self.wait_while(|flight| flight.fiber.borrow().is_some()).is_ok(),
        };
        self.0.give_up();
        true
    }
}

impl Advance for EngineCell<Cpu> {
    fn advance(&self) -> bool {
        if !self.origin().is_here() {
            // Its fiber holds it, and never runs here.
            in_flight::leave(ptr::from_ref(self).cast());
            return true;
        }
        let flight = self.flight();
        if flight.is_inside.replace(true) {
            return true;
        }
        let mut fiber = flight.fiber.borrow_mut();
        let resumed = fiber.as_mut().map(|fiber| fiber.resume(()));
        flight.is_inside.set(false);
        match resumed {
            Some(CoroutineResult::Yield(is_long)) => return is_long,
            Some(CoroutineResult::Return(())) => {
                fiber.take().into_iter().for_each(fiber::recycle);
                drop(fiber);
                in_flight::leave(ptr::from_ref(self).cast());
                // Another thread may have it from here on.
                self.set_in_flight(false);
            }
            None => {}
        }
        false
    }

    fn give_up(&self) {
        if !self.origin().is_here() {
            return;
        }
        let flight = self.flight();
        flight.health.fail(Fault::Aborted, None);
        while !flight.is_inside.get() && flight.fiber.borrow().is_some() {
            self.advance();
        }
    }
}

/// Runs what is in the queue until it is empty.
fn run_all(engine: &mut Engine<Cpu>, queue: &Queue, fiber: RawQueue) {
    while let Some(calls) = queue.begin_next() {
        // SAFETY: (1) that of `Flights::start`; (2) the yielder lives as long as the fiber.
        let ran = catch_unwind(AssertUnwindSafe(|| unsafe { engine.run(&calls, &[fiber]) }));
        queue.recycle(calls);
        let result = match ran {
            Ok(ran) => ran.map_err(Failure::Run),
            Err(payload) => Err(Failure::Panic(payload)),
        };
        let health = engine.machine().health();
        queue.end_all(result, || RunError::Stopped(health.fail(Fault::Panicked, None)));
    }
}

/// As [`GroupMachine::run_behind`](crate::launch::GroupMachine::run_behind). Continues the panic of an operation.
///
/// # Safety
/// 1. As there.
pub(super) unsafe fn run_behind(jobs: &mut [Behind<'_, Cpu>]) {
    let mut started = heapless::Vec::<_, { fiber::GROUP_COMMUNICATORS_MAX }>::new();
    for job in &mut *jobs {
        let ticket = Flights(job.cell).spare_calls().map_err(StartError::Occupied).and_then(|mut calls| {
            calls.extend_from_slice(job.calls);
            // SAFETY: obligation 1: it is waited for below.
            unsafe { Flights(job.cell).start(calls, Owner::Caller) }
        });
        // Cannot be full: a group holds no more jobs.
        let _ = started.push(ticket);
    }
    let mut panic = None;
    for (job, ticket) in jobs.iter_mut().zip(started) {
        let over = ticket.and_then(|ticket| Flights(job.cell).wait(ticket).map_err(StartError::Occupied));
        job.result = match over {
            Ok(Some((Err(Failure::Run(error)), _))) => Err(BehindError::Run(error)),
            Ok(Some((Err(Failure::Panic(payload)), _))) => {
                panic = Some(payload);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => Err(BehindError::Start(error)),
        };
    }
    if let Some(payload) = panic {
        resume_unwind(payload);
    }
}
