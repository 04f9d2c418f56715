//! The step FIFO: NCCL's connection between two ranks, as two ends over one [`ConnControl`].
//!
//! ```text
//! producer                                   consumer
//!   poll_credit(): head + 8 > step?            poll(): tail > step?        (Simple)
//!   fill slot step % 8                         ... or its lines carry the flag (LL, LL128)
//!   publish(header): header, then tail         use slot step % 8
//!   or advance(), if the lines say it          release(): head = step + 1
//! ```

use super::credit::has_credit;
use crate::abi::{ConnControl, SlotHeader, Step};

/// The end that fills slots.
pub struct StepProducer<'a> {
    control: &'a ConnControl,
    step: Step,
    /// The last `head` seen. Reading the word itself costs a line from the consumer's cache; once per 8 steps is enough.
    head_seen: u64,
}

/// The end that empties slots.
pub struct StepConsumer<'a> {
    control: &'a ConnControl,
    step: Step,
    tail_seen: u64,
}

/// Both ends of a fresh connection. Each process keeps the one it is and forgets the other.
pub fn split(control: &ConnControl) -> (StepProducer<'_>, StepConsumer<'_>) {
    (
        StepProducer { control, step: Step(0), head_seen: 0 },
        StepConsumer { control, step: Step(0), tail_seen: 0 },
    )
}

impl StepProducer<'_> {
    /// The step that will be produced next.
    #[inline]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Whether the slot of [`Self::step`] is empty.
    #[inline]
    pub fn poll_credit(&mut self) -> bool {
        if has_credit(self.step.0, self.head_seen) {
            return true;
        }
        // ACQUIRE pairs with RELEASE in StepConsumer::release: the consumer's reads of the slot are over.
        self.head_seen = self.control.head.load_acquire();
        has_credit(self.step.0, self.head_seen)
    }

    /// Publishes the filled slot with its header (Simple).
    #[inline]
    pub fn publish(&mut self, header: SlotHeader) {
        self.control.headers[self.step.slot()].store_relaxed(header.to_word());
        self.step = self.step.next();
        // RELEASE pairs with ACQUIRE in StepConsumer::poll: header and payload are visible to who sees this tail.
        self.control.tail.store_release(self.step.0);
    }

    /// Counts a slot whose lines publish themselves (LL, LL128).
    #[inline]
    pub fn advance(&mut self) {
        self.step = self.step.next();
    }

    /// Whether the consumer has emptied every slot: what a proxy asks before it says that an operation is over.
    #[inline]
    pub fn is_drained(&self) -> bool {
        // ACQUIRE pairs with RELEASE in StepConsumer::release.
        self.control.head.load_acquire() >= self.step.0
    }
}

impl StepConsumer<'_> {
    /// The step that will be consumed next.
    #[inline]
    pub fn step(&self) -> Step {
        self.step
    }

    /// The header of the slot of [`Self::step`], once published under Simple.
    #[inline]
    pub fn poll(&mut self) -> Option<SlotHeader> {
        if self.tail_seen <= self.step.0 {
            // ACQUIRE pairs with RELEASE in StepProducer::publish: header and payload are visible.
            self.tail_seen = self.control.tail.load_acquire();
            if self.tail_seen <= self.step.0 {
                return None;
            }
        }
        Some(SlotHeader::from_word(self.control.headers[self.step.slot()].load_relaxed()))
    }

    /// Gives the slot back to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.step = self.step.next();
        // RELEASE pairs with ACQUIRE in StepProducer::poll_credit: our reads of the slot come first.
        self.control.head.store_release(self.step.0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fifo::STEPS;

    #[test]
    fn a_producer_stops_eight_steps_ahead() {
        let control = ConnControl::default();
        let (mut producer, mut consumer) = split(&control);
        for step in 0..STEPS as u32 {
            assert!(producer.poll_credit());
            producer.publish(SlotHeader { tag: 7, len_bytes: step });
        }
        assert!(!producer.poll_credit());
        assert_eq!(consumer.poll(), Some(SlotHeader { tag: 7, len_bytes: 0 }));
        consumer.release();
        assert!(producer.poll_credit());
        assert!(!producer.is_drained());
    }

    #[test]
    fn headers_arrive_in_order_over_many_wraps() {
        let control = ConnControl::default();
        let (mut producer, mut consumer) = split(&control);
        for step in 0..1000u32 {
            assert_eq!(consumer.poll(), None);
            assert!(producer.poll_credit());
            producer.publish(SlotHeader { tag: step, len_bytes: !step });
            assert_eq!(consumer.poll(), Some(SlotHeader { tag: step, len_bytes: !step }));
            consumer.release();
        }
        assert!(producer.is_drained());
    }
}
