//! Operations in flight: those that wait for their turn, those under way, and the results that nobody has taken yet.

use crate::launch::{RawCall, RunError};
use oxccl_shared::abi::Rank;
use oxccl_shared::sync::{Sys, Word};
use std::any::Any;
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most operations of one communicator that were started and whose results have not been taken.
pub const IN_FLIGHT_MAX: usize = 512;

/// An operation that was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    slot: u32,
    /// Which of those that had the slot.
    generation: u32,
}

/// Who takes the result, and what is kept until then.
pub enum Owner {
    /// The caller, which waits.
    Caller,
    /// A scope, by number: it outlives the operation.
    Scope(u64),
    /// A request, which may be dropped or forgotten: what it reads and writes is kept here. The word is nonzero once it was dropped.
    Request(Box<dyn Any + Send>, Arc<Word<u32, Sys>>),
}

/// Why an operation failed.
pub enum Failure {
    /// The communicator's fault, or the machine's error.
    Run(RunError),
    /// It panicked: an algorithm from outside the library.
    Panic(Box<dyn Any + Send>),
}

/// How an operation ended, and whose it was.
pub type Over = (Result<(), Failure>, Owner);

enum State {
    Free,
    Waits,
    Runs,
    Over(Result<(), Failure>),
}

struct Slot {
    state: State,
    owner: Owner,
    generation: u32,
    calls: Vec<RawCall>,
    /// Whether it is of messages to other ranks only, which progress together.
    joins: bool,
}

impl Slot {
    fn error(&self) -> Option<RunError> {
        match &self.state {
            State::Over(Err(Failure::Run(error))) => Some(error.clone()),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
    /// What has not begun, in order.
    line: VecDeque<u32>,
    /// What has begun: one operation, or several of messages.
    running: Vec<u32>,
    /// Memory for calls.
    spare: Vec<Vec<RawCall>>,
    scopes: u64,
    /// How many that are over have a request, which may be dropped yet.
    kept: usize,
    /// What requests owned that were dropped, to be dropped where its user's code may run.
    dead: Vec<Owner>,
}

/// One communicator's. Used by one thread.
#[derive(Default)]
pub(super) struct Queue(RefCell<Slots>);

impl Queue {
    fn slots(&self) -> RefMut<'_, Slots> {
        self.0.borrow_mut()
    }

    /// Memory for an operation's calls.
    pub(super) fn spare_calls(&self) -> Vec<RawCall> {
        self.slots().spare.pop().unwrap_or_default()
    }

    /// Drops what requests owned that were dropped and are over. Call it outside of operations.
    pub(super) fn bury(&self) {
        self.slots().forget_dropped();
        // One by one: dropping may come back here.
        while let Some(owner) = { self.slots().dead.pop() } {
            drop(owner);
        }
    }

    /// Takes it back.
    pub(super) fn recycle(&self, mut calls: Vec<RawCall>) {
        calls.clear();
        self.slots().spare.push(calls);
    }

    /// The number of the next scope.
    pub(super) fn next_scope(&self) -> u64 {
        let mut slots = self.slots();
        slots.scopes += 1;
        slots.scopes
    }

    /// Adds an operation of rank `me` behind the others.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn push(&self, calls: Vec<RawCall>, owner: Owner, me: Rank) -> Result<Ticket, Vec<RawCall>> {
        let mut slots = self.slots();
        let Some(slot) = slots.free_slot() else { return Err(calls) };
        let is_message = |raw: &RawCall| raw.call.func.is_message() && raw.call.root != me;
        let joins = !calls.is_empty() && calls.iter().all(is_message);
        let at = &mut slots.all[slot as usize];
        let generation = at.generation;
        *at = Slot { state: State::Waits, owner, generation, calls, joins };
        slots.line.push_back(slot);
        Ok(Ticket { slot, generation })
    }

    /// The next operation begins, if there is one: its calls.
    pub(super) fn begin_next(&self) -> Option<Vec<RawCall>> {
        let mut slots = self.slots();
        let slot = slots.line.pop_front()?;
        Some(slots.begin(slot))
    }

    /// The operation under way, if it is of messages that others may join.
    pub(super) fn running_that_joins(&self) -> Option<u32> {
        let slots = self.slots();
        slots.running.first().copied().filter(|slot| slots.all[*slot as usize].joins)
    }

    /// How many messages the next operation would add to those under way; none if it cannot join.
    pub(super) fn next_joins(&self) -> Option<usize> {
        let slots = self.slots();
        let next = &slots.all[*slots.line.front()? as usize];
        next.joins.then_some(next.calls.len())
    }

    /// The next operation joins those under way: its number here, and its calls.
    pub(super) fn join_next(&self) -> Option<(u32, Vec<RawCall>)> {
        let mut slots = self.slots();
        let slot = slots.line.pop_front()?;
        Some((slot, slots.begin(slot)))
    }

    /// One of those under way is done.
    pub(super) fn end(&self, slot: u32) {
        let mut slots = self.slots();
        slots.running.retain(|running| *running != slot);
        slots.over(slot, Ok(()));
    }

    /// All that are under way end alike; of a panic the first has the payload, and the others have `fault`.
    pub(super) fn end_all(&self, result: Result<(), Failure>, fault: impl Fn() -> RunError) {
        let mut slots = self.slots();
        let mut result = Some(result);
        for at in 0..slots.running.len() {
            let slot = slots.running[at];
            let next = match &result {
                Some(Ok(())) => Some(Ok(())),
                Some(Err(Failure::Run(error))) => Some(Err(Failure::Run(error.clone()))),
                Some(Err(Failure::Panic(_))) | None => None,
            };
            let own = std::mem::replace(&mut result, next);
            slots.over(slot, own.unwrap_or_else(|| Err(Failure::Run(fault()))));
        }
        slots.running.clear();
    }

    /// Whether the operation is over; of one that is not this communicator's, or whose result was taken, none.
    pub(super) fn is_over(&self, ticket: Ticket) -> Option<bool> {
        self.slots().at(ticket).map(|slot| matches!(slot.state, State::Over(_)))
    }

    /// The error of an operation that is over.
    pub(super) fn error(&self, ticket: Ticket) -> Option<RunError> {
        self.slots().at(ticket)?.error()
    }

    /// Whether the request with this word is that of the operation.
    pub(super) fn is_of(&self, ticket: Ticket, word: &Arc<Word<u32, Sys>>) -> bool {
        let slots = self.slots();
        matches!(slots.at(ticket).map(|slot| &slot.owner), Some(Owner::Request(_, own)) if Arc::ptr_eq(own, word))
    }

    /// The result of an operation that is over, and what it kept.
    pub(super) fn take(&self, ticket: Ticket) -> Option<Over> {
        let mut slots = self.slots();
        slots.at(ticket).filter(|slot| matches!(slot.state, State::Over(_)))?;
        slots.free(ticket.slot)
    }

    /// Whether operations of this scope are not over.
    pub(super) fn has_any_of(&self, scope: u64) -> bool {
        let slots = self.slots();
        let is_of = |slot: &u32| matches!(slots.all[*slot as usize].owner, Owner::Scope(own) if own == scope);
        slots.line.iter().chain(&slots.running).any(is_of)
    }

    /// The first error of this scope's operations, in the order of their slots.
    pub(super) fn error_of(&self, scope: u64) -> Option<RunError> {
        let slots = self.slots();
        let of_scope = |slot: &&Slot| matches!(slot.owner, Owner::Scope(own) if own == scope);
        slots.all.iter().filter(of_scope).find_map(Slot::error)
    }

    /// Takes the results of this scope's operations, all of which are over; the first failure.
    pub(super) fn take_all_of(&self, scope: u64) -> Result<(), Failure> {
        let mut slots = self.slots();
        let mut first = Ok(());
        for slot in 0..slots.all.len() as u32 {
            let at = &slots.all[slot as usize];
            let is_of = matches!(at.owner, Owner::Scope(own) if own == scope);
            if is_of && let Some((result, _)) = slots.free(slot) {
                first = first.and(result);
            }
        }
        first
    }
}

impl Slots {
    fn at(&self, ticket: Ticket) -> Option<&Slot> {
        let slot = self.all.get(ticket.slot as usize)?;
        (slot.generation == ticket.generation && !matches!(slot.state, State::Free)).then_some(slot)
    }

    /// A slot for another operation: if need be that of one that is over and whose request was dropped.
    fn free_slot(&mut self) -> Option<u32> {
        if self.free.is_empty() && self.all.len() == IN_FLIGHT_MAX {
            self.forget_dropped();
        }
        if self.free.is_empty() && self.all.len() < IN_FLIGHT_MAX {
            let (state, owner, calls) = (State::Free, Owner::Caller, Vec::new());
            self.all.push(Slot { state, owner, generation: 0, calls, joins: false });
            return Some(self.all.len() as u32 - 1);
        }
        self.free.pop()
    }

    fn begin(&mut self, slot: u32) -> Vec<RawCall> {
        self.running.push(slot);
        let at = &mut self.all[slot as usize];
        at.state = State::Runs;
        std::mem::take(&mut at.calls)
    }

    fn over(&mut self, slot: u32, result: Result<(), Failure>) {
        let at = &mut self.all[slot as usize];
        at.state = State::Over(result);
        self.kept += usize::from(matches!(at.owner, Owner::Request(..)));
        self.forget_if_dropped(slot);
    }

    /// Those that were dropped after they were over.
    fn forget_dropped(&mut self) {
        if self.kept > 0 {
            (0..self.all.len() as u32).for_each(|slot| self.forget_if_dropped(slot));
        }
    }

    fn forget_if_dropped(&mut self, slot: u32) {
        let at = &self.all[slot as usize];
        // ACQUIRE pairs with RELEASE in the drop of a request.
        let is_dropped = matches!(&at.owner, Owner::Request(_, dropped) if dropped.load_acquire() != 0);
        if is_dropped {
            let freed = self.free(slot);
            self.dead.extend(freed.map(|(_, owner)| owner));
        }
    }

    /// Frees the slot of an operation that is over.
    fn free(&mut self, slot: u32) -> Option<Over> {
        let at = &mut self.all[slot as usize];
        if !matches!(at.state, State::Over(_)) {
            return None;
        }
        at.generation = at.generation.wrapping_add(1);
        let owner = std::mem::replace(&mut at.owner, Owner::Caller);
        let State::Over(result) = std::mem::replace(&mut at.state, State::Free) else { return None };
        self.kept -= usize::from(matches!(owner, Owner::Request(..)));
        self.free.push(slot);
        Some((result, owner))
    }
}
