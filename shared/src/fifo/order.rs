//! The order FIFO: a user's thread tells a proxy what to do, one `Copy` record at a time, without a lock.

use crate::sync::{Line128, SharedCell, Sys, Word};

/// A bounded single-producer single-consumer queue of `N` records; `N` must be a power of two.
pub struct OrderFifo<T: Copy, const N: usize> {
    /// Written by the producer: records ever pushed.
    tail: Line128<Word<u64, Sys>>,
    /// Written by the consumer: records ever popped.
    head: Line128<Word<u64, Sys>>,
    slots: [SharedCell<T>; N],
}

// SAFETY: a slot is written only by the producer before `tail` passes it and read only by the consumer after, and
// `split` hands out one of each.
unsafe impl<T: Copy + Send, const N: usize> Sync for OrderFifo<T, N> {}

/// The pushing end.
pub struct OrderProducer<'a, T: Copy, const N: usize> {
    fifo: &'a OrderFifo<T, N>,
    tail: u64,
    head_seen: u64,
}

/// The popping end.
pub struct OrderConsumer<'a, T: Copy, const N: usize> {
    fifo: &'a OrderFifo<T, N>,
    head: u64,
    tail_seen: u64,
}

impl<T: Copy, const N: usize> OrderFifo<T, N> {
    const MASK: u64 = {
        assert!(N.is_power_of_two());
        N as u64 - 1
    };

    /// An empty queue.
    pub fn new() -> Self {
        OrderFifo {
            tail: Line128(Word::new(0)),
            head: Line128(Word::new(0)),
            slots: core::array::from_fn(|_| SharedCell::new()),
        }
    }

    /// The two ends. The exclusive borrow is the proof that there is one of each.
    pub fn split(&mut self) -> (OrderProducer<'_, T, N>, OrderConsumer<'_, T, N>) {
        let fifo = &*self;
        let (tail, head) = (fifo.tail.load_relaxed(), fifo.head.load_relaxed());
        (OrderProducer { fifo, tail, head_seen: head }, OrderConsumer { fifo, head, tail_seen: tail })
    }
}

impl<T: Copy, const N: usize> Default for OrderFifo<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy, const N: usize> OrderProducer<'_, T, N> {
    /// Appends a record, or gives it back when `N` are waiting.
    #[inline]
    pub fn push(&mut self, order: T) -> Result<(), T> {
        if self.tail == self.head_seen + N as u64 {
            // ACQUIRE pairs with RELEASE in OrderConsumer::pop: the consumer has finished reading the slot.
            self.head_seen = self.fifo.head.load_acquire();
            if self.tail == self.head_seen + N as u64 {
                return Err(order);
            }
        }
        let slot = (self.tail & OrderFifo::<T, N>::MASK) as usize;
        // SAFETY: the slot is empty (checked above) and this is the only producer.
        unsafe { self.fifo.slots[slot].write(order) };
        self.tail += 1;
        // RELEASE pairs with ACQUIRE in OrderConsumer::pop.
        self.fifo.tail.store_release(self.tail);
        Ok(())
    }
}

impl<T: Copy, const N: usize> OrderConsumer<'_, T, N> {
    /// Takes the oldest record.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_seen {
            // ACQUIRE pairs with RELEASE in OrderProducer::push: the record is written.
            self.tail_seen = self.fifo.tail.load_acquire();
            if self.head == self.tail_seen {
                return None;
            }
        }
        let slot = (self.head & OrderFifo::<T, N>::MASK) as usize;
        // SAFETY: the producer has written the slot (tail passed it) and will not again until head passes it.
        let order = unsafe { self.fifo.slots[slot].read() };
        self.head += 1;
        // RELEASE pairs with ACQUIRE in OrderProducer::push.
        self.fifo.head.store_release(self.head);
        Some(order)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn full_gives_back_and_order_is_kept() {
        let mut fifo = OrderFifo::<u32, 4>::new();
        let (mut producer, mut consumer) = fifo.split();
        for round in 0..100u32 {
            for i in 0..4 {
                assert_eq!(producer.push(round * 4 + i), Ok(()));
            }
            assert_eq!(producer.push(99), Err(99));
            for i in 0..4 {
                assert_eq!(consumer.pop(), Some(round * 4 + i));
            }
            assert_eq!(consumer.pop(), None);
        }
    }
}
