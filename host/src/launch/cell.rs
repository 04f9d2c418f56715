//! An engine between its communicator and the operations in flight.

use super::call::RawCall;
use super::engine::Engine;
use super::in_flight;
use super::machine::{Machine, RunError};
use crate::os::Origin;
use oxccl_shared::sync::{Sys, Word};
use std::cell::{RefCell, RefMut};
use std::sync::Arc;

/// An engine at an address of its own: operations in flight have it while its communicator moves.
pub struct EngineCell<M: Machine> {
    /// The thread on which operations are in flight, by [`in_flight::this_thread`]; 0: none are. Writer: that thread, or before there
    /// is one the communicator's.
    thread: Word<u64, Sys>,
    /// A forked child has a copy of the memory, and none of the threads.
    origin: Origin,
    engine: RefCell<Engine<M>>,
    flight: M::Flight,
}

// SAFETY: all but `thread` is touched by the thread that uses the communicator, which one at a time does; while `thread` names one, by
// that one. Whoever touches it asks `check` first.
unsafe impl<M: Machine> Send for EngineCell<M> {}

// SAFETY: as above.
unsafe impl<M: Machine> Sync for EngineCell<M> {}

/// Why an engine cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occupied {
    /// Operations are in flight on this thread.
    InFlight,
    /// Operations are in flight on another thread.
    Elsewhere,
    /// This process was forked by the one that it belongs to.
    Forked,
    /// A group runs on it, or one of its own operations asks.
    Busy,
}

/// Why an operation was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// The engine cannot be had.
    Occupied(Occupied),
    /// The results of so many have not been taken yet.
    TooMany {
        /// The limit.
        max: usize,
    },
    /// There is no memory for a stack.
    Memory {
        /// Why.
        errno: i32,
    },
}

/// Calls that run behind those in flight.
pub struct Behind<'a, M: Machine> {
    /// The engine.
    pub cell: &'a Arc<EngineCell<M>>,
    /// Its calls.
    pub calls: &'a [RawCall],
    /// How it went.
    pub result: Result<(), BehindError>,
}

/// Why calls behind those in flight failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BehindError {
    /// They were not started.
    Start(StartError),
    /// They were.
    Run(RunError),
}

impl<M: Machine> EngineCell<M> {
    /// With this engine.
    pub fn new(engine: Engine<M>) -> EngineCell<M> {
        let flight = engine.machine().flight();
        EngineCell { thread: Word::new(0), origin: Origin::here(), engine: RefCell::new(engine), flight }
    }

    /// The engine, if nothing is in flight.
    ///
    /// # Errors
    /// Who has it.
    #[inline]
    pub fn enter(&self) -> Result<RefMut<'_, Engine<M>>, Occupied> {
        // ACQUIRE pairs with RELEASE in `set_in_flight`.
        match self.thread.load_acquire() {
            _ if !self.origin.is_here() => Err(Occupied::Forked),
            0 => self.engine.try_borrow_mut().map_err(|_| Occupied::Busy),
            thread => Err(Self::occupied_by(thread)),
        }
    }

    /// The process that made it.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    #[cold]
    fn occupied_by(thread: u64) -> Occupied {
        if thread == in_flight::this_thread() { Occupied::InFlight } else { Occupied::Elsewhere }
    }

    /// Whether this thread may use it: nothing is in flight, or on this thread.
    ///
    /// # Errors
    /// Who has it.
    pub(crate) fn check(&self) -> Result<&M::Flight, Occupied> {
        match self.enter() {
            Ok(_) | Err(Occupied::InFlight) => Ok(&self.flight),
            Err(occupied) => Err(occupied),
        }
    }

    /// What is in flight, for the fiber that runs it and the thread that has it.
    pub(crate) fn flight(&self) -> &M::Flight {
        &self.flight
    }

    /// The engine for operations in flight, while their fiber is there.
    ///
    /// # Panics
    /// If somebody has it.
    pub(crate) fn enter_in_flight(&self) -> RefMut<'_, Engine<M>> {
        self.engine.borrow_mut()
    }

    /// Operations are in flight on this thread from now on, or are no longer.
    pub(crate) fn set_in_flight(&self, are_there: bool) {
        // RELEASE pairs with ACQUIRE in `enter`: what they did to the engine comes before.
        self.thread.store_release(if are_there { in_flight::this_thread() } else { 0 });
    }

    /// The engine alone.
    ///
    /// # Errors
    /// Somebody else has it.
    pub fn into_engine(self: Arc<Self>) -> Result<Engine<M>, Arc<EngineCell<M>>> {
        Arc::try_unwrap(self).map(|cell| cell.engine.into_inner())
    }
}
