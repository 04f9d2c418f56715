//! What is in flight on this thread: operations that were started and are not done, which every wait of the thread advances.
//!
//! A communicator has a fiber for its operations in flight ([`Advance`] resumes it). It belongs to the thread that started them, so
//! that nothing on its stack changes threads; a thread that ends gives up what it has in flight.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

/// How long a wait for operations in flight sleeps, once all of them have waited for long.
const BACK_OFF: Duration = Duration::from_micros(100);
/// Rounds in which everything in flight polls once, before the thread yields the processor.
const ROUNDS_BEFORE_YIELD: u32 = 64;

/// One communicator's operations in flight.
pub(crate) trait Advance {
    /// Goes on until it waits for a peer. Returns whether it has done so for long; when nothing is left it calls [`leave`].
    fn advance(&self) -> bool;

    /// Ends everything at once, with an error.
    fn give_up(&self);
}

/// The thread's list. Dropped with the thread.
struct Active(RefCell<Vec<Arc<dyn Advance>>>);

thread_local! {
    /// How many are in the list, for waits, which mostly find none.
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static ACTIVE: Active = const { Active(RefCell::new(Vec::new())) };
}

impl Drop for Active {
    fn drop(&mut self) {
        COUNT.set(0);
        for one in self.0.take() {
            one.give_up();
        }
    }
}

/// This thread, as long as it lives: no other has the same number, and none has 0.
pub(crate) fn this_thread() -> u64 {
    COUNT.with(|count| std::ptr::from_ref(count).addr() as u64)
}

/// Whether anything is in flight on this thread.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.get() > 0
}

/// From now on the thread's waits advance it.
pub(crate) fn enter(one: Arc<dyn Advance>) {
    ACTIVE.with(|active| {
        let mut list = active.0.borrow_mut();
        list.push(one);
        COUNT.set(list.len());
    });
}

/// Nothing of it is left.
pub(crate) fn leave(one: *const ()) {
    // The list is gone when the thread ends.
    let _ = ACTIVE.try_with(|active| {
        let mut list = active.0.borrow_mut();
        let at = list.iter().position(|other| Arc::as_ptr(other).cast::<()>() == one);
        let left = at.map(|at| list.remove(at));
        COUNT.set(list.len());
        drop(list);
        drop(left);
    });
}

/// Has everything in flight on this thread go on until it waits. Returns whether all of it has waited for long: true if there is none.
#[inline]
pub(crate) fn advance_all() -> bool {
    !any() || advance_each()
}

fn advance_each() -> bool {
    let (mut at, mut all_long) = (0, true);
    loop {
        let one = ACTIVE.with(|active| active.0.borrow().get(at).cloned());
        let Some(one) = one else { return all_long };
        all_long &= one.advance();
        // It may have left the list, or another one before it.
        let stays = |active: &Active| active.0.borrow().get(at).is_some_and(|there| Arc::ptr_eq(there, &one));
        at += usize::from(ACTIVE.with(stays));
    }
}

/// How a thread waits that has nothing to do but to advance what is in flight.
#[derive(Default)]
pub(crate) struct Patience {
    rounds: u32,
}

impl Patience {
    /// Advances everything once, and hands over the processor now and then.
    pub(crate) fn round(&mut self) {
        let all_wait_long = advance_all();
        self.rounds = self.rounds.wrapping_add(1);
        if all_wait_long {
            std::thread::sleep(BACK_OFF);
        } else if self.rounds.is_multiple_of(ROUNDS_BEFORE_YIELD) {
            std::thread::yield_now();
        }
    }
}
