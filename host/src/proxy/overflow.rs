//! Orders beyond the FIFO's capacity: a thread that issues orders to a proxy thread must neither block on it nor lose
//! one.
//!
//! Blocking would deadlock: the proxy may be waiting for the next order of the same thread, for another of its ranks.

use super::order::ProxyOrder;
use oxccl_shared::sync::{Sys, Word};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A queue behind the FIFO, within a process. While it holds an order, new orders go behind it, so all orders in the
/// FIFO are older. The lock is not used while the FIFO has room.
#[derive(Default)]
pub(super) struct Overflow {
    waiting: Mutex<VecDeque<ProxyOrder>>,
    /// Not zero while it holds an order. Written under the lock.
    waits: Word<u32, Sys>,
}

impl Overflow {
    /// Whether it is empty. The taker checks this before it polls the FIFO: checked afterwards, the overflow's orders
    /// might be younger than some that have entered the FIFO since.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // ACQUIRE pairs with RELEASE in `push` and `pop`: a reader of 1 sees the FIFO as it was filled before, a
        // reader of 0 issues behind the orders taken.
        self.waits.load_acquire() == 0
    }

    pub fn push(&self, order: ProxyOrder) {
        let mut waiting = self.lock();
        waiting.push_back(order);
        // RELEASE pairs with ACQUIRE in `is_empty`.
        self.waits.store_release(1);
    }

    /// The oldest order. The caller has found the FIFO empty after [`Self::is_empty`].
    pub fn pop(&self) -> Option<ProxyOrder> {
        let mut waiting = self.lock();
        let order = waiting.pop_front();
        if waiting.is_empty() {
            // RELEASE pairs with ACQUIRE in `is_empty`.
            self.waits.store_release(0);
        }
        order
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ProxyOrder>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
