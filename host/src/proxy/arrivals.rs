//! Ends of connections that are made while the proxy runs. The thread that issues orders hands an end over before the first order that
//! uses it.

use oxccl_shared::sync::{Sys, Word};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ends that the proxy has not taken yet, within a process. The lock is used when there are any, and at no other time.
pub(super) struct Arrivals<E> {
    ends: Mutex<Vec<E>>,
    /// Not zero while there are ends. Written under the lock.
    waits: Word<u32, Sys>,
}

impl<E> Arrivals<E> {
    /// None.
    pub fn new() -> Arrivals<E> {
        Arrivals { ends: Mutex::default(), waits: Word::default() }
    }

    /// Whether there are none. The taker checks this after it has taken an order: the ends of that order came before it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // ACQUIRE pairs with RELEASE in `push`; what orders a push before its order is the FIFO, or the overflow.
        self.waits.load_acquire() == 0
    }

    pub fn push(&self, end: E) {
        let mut ends = self.lock();
        ends.push(end);
        // RELEASE pairs with ACQUIRE in `is_empty`.
        self.waits.store_release(1);
    }

    /// All ends so far, in the order in which they came.
    pub fn take(&self) -> Vec<E> {
        let mut ends = self.lock();
        // RELEASE pairs with ACQUIRE in `is_empty`.
        self.waits.store_release(0);
        std::mem::take(&mut *ends)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<E>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
