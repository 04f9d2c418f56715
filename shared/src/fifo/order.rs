//! The order FIFO: lock-free commands from a user's thread to a proxy, one `Copy` record at a time.
//!
//! Zeroed memory is an empty queue, and the layout is fixed, so the two ends may be in different processes: each maps
//! the memory and takes its end ([`OrderFifo::producer`], [`OrderFifo::consumer`]). Their records must hold no
//! pointers, and every bit pattern must be a valid record.

use crate::sync::{Line128, SharedCell, Sys, Word};

/// A bounded single-producer single-consumer queue of `N` records; `N` must be a power of two.
#[repr(C)]
pub struct OrderFifo<T: Copy, const N: usize> {
    /// Records ever pushed. Writer: the producer.
    tail: Line128<Word<u64, Sys>>,
    /// Records ever popped. Writer: the consumer.
    head: Line128<Word<u64, Sys>>,
    slots: [SharedCell<T>; N],
}

// SAFETY: the producer writes a slot only before `tail` passes it, the consumer reads it only afterwards, and `split`
// returns one of each.
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

    /// The two ends. The exclusive borrow proves that there is one of each.
    pub fn split(&mut self) -> (OrderProducer<'_, T, N>, OrderConsumer<'_, T, N>) {
        let fifo = &*self;
        let (tail, head) = (fifo.tail.load_relaxed(), fifo.head.load_relaxed());
        (OrderProducer { fifo, tail, head_seen: head }, OrderConsumer { fifo, head, tail_seen: tail })
    }
}

impl<T: Copy, const N: usize> OrderFifo<T, N> {
    /// The pushing end, for users that share the queue through memory instead of a borrow. It continues where the
    /// last one stopped.
    ///
    /// # Safety
    /// 1. There is no other pushing end, in any process: the last one's end happens before this call.
    pub unsafe fn producer(&self) -> OrderProducer<'_, T, N> {
        // Relaxed: only producers write it, and the one before is gone, which the caller knows by some ordering of its own.
        let tail = self.tail.load_relaxed();
        // ACQUIRE pairs with RELEASE in OrderConsumer::pop: the consumer has finished reading the slots before it.
        let head_seen = self.head.load_acquire();
        OrderProducer { fifo: self, tail, head_seen }
    }

    /// The popping end. As [`Self::producer`].
    ///
    /// # Safety
    /// 1. There is no other popping end, in any process.
    pub unsafe fn consumer(&self) -> OrderConsumer<'_, T, N> {
        // Relaxed: as above.
        let head = self.head.load_relaxed();
        // ACQUIRE pairs with RELEASE in OrderProducer::push: the records before it are written.
        let tail_seen = self.tail.load_acquire();
        OrderConsumer { fifo: self, head, tail_seen }
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    type Fifo = OrderFifo<[u64; 2], 4>;
    assert!(offset_of!(Fifo, tail) == 0);
    assert!(offset_of!(Fifo, head) == 128);
    assert!(offset_of!(Fifo, slots) == 256);
    // Padded to the line size of the words.
    assert!(size_of::<Fifo>() == 384 && align_of::<Fifo>() == 128);
    assert!(size_of::<SharedCell<[u64; 2]>>() == 16);
};

impl<T: Copy, const N: usize> Default for OrderFifo<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy, const N: usize> OrderProducer<'_, T, N> {
    /// Appends a record, or returns it if the queue is full.
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
    /// Whether the queue is empty. Orders nothing: only [`Self::pop`] gives access to a record.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail_seen && self.head == self.fifo.tail.load_relaxed()
    }

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

    /// Models two processes that map the same zeroed memory, one of which restarts.
    #[test]
    fn ends_attach_to_memory_and_go_on_where_the_last_was() {
        let mut memory = core::mem::MaybeUninit::<OrderFifo<u32, 4>>::zeroed();
        // SAFETY: zeroes are an empty queue.
        let fifo = unsafe { memory.assume_init_mut() };
        for round in 0..6 {
            // SAFETY: the ends of the previous round are gone.
            let (mut producer, mut consumer) = unsafe { (fifo.producer(), fifo.consumer()) };
            assert_eq!(consumer.pop(), (round > 0).then(|| 3 * round - 1));
            for i in 0..3 {
                assert_eq!(producer.push(3 * round + i), Ok(()));
            }
            assert_eq!((consumer.pop(), consumer.pop()), (Some(3 * round), Some(3 * round + 1)));
        }
    }

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
                assert!(!consumer.is_empty());
                assert_eq!(consumer.pop(), Some(round * 4 + i));
            }
            assert!(consumer.is_empty());
            assert_eq!(consumer.pop(), None);
        }
    }
}
