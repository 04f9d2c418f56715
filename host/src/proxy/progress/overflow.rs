//! Orders that the FIFO had no room for: whoever gives orders to a proxy thread must neither wait for it nor lose one.
//!
//! Waiting would be a deadlock: what the proxy waits for may be what the same thread orders next, for another of its ranks.

use super::order::ProxyOrder;
use oxccl_shared::sync::{Sys, Word};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A queue behind the FIFO, within a process. While it holds anything, what is given goes behind it: so what the FIFO holds was
/// given before. Nobody touches the lock as long as the FIFO has room.
#[derive(Default)]
pub(super) struct Overflow {
    waiting: Mutex<VecDeque<ProxyOrder>>,
    /// Not zero while something waits. Written under the lock.
    waits: Word<u32, Sys>,
}

impl Overflow {
    /// Whether nothing waits. The taker asks before it looks into the FIFO: if it asked behind, what is here now might be
    /// younger than what has come into the FIFO since.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // ACQUIRE pairs with RELEASE in `push` and `pop`: whoever sees something waiting sees the FIFO as it was filled before,
        // whoever sees nothing gives behind what was taken.
        self.waits.load_acquire() == 0
    }

    pub fn push(&self, order: ProxyOrder) {
        let mut waiting = self.lock();
        waiting.push_back(order);
        // RELEASE pairs with ACQUIRE in `is_empty`.
        self.waits.store_release(1);
    }

    /// The oldest. The FIFO must have been found empty since [`Self::is_empty`] was asked.
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
