//! The step FIFO: NCCL's connection between two ranks, as two ends over one [`ConnControl`].
//!
//! ```text
//! producer                                   consumer
//!   poll_credit(n): head + n > step?           poll(): tail > step?        (Simple)
//!   fill slot step % n                         ... or its lines carry the flag (LL, LL128)
//!   publish(header): header, then tail         use slot step % n
//!   or advance(), if the lines carry flags     release(): head = step + 1
//! ```
//!
//! A buffer has `n` slots: 8, or what its protocol says ([`Protocol::slots`](crate::abi::Protocol::slots)).
//!
//! Between processors a slot is published in a line of its own ([`SlotLine`]) instead: `publish_in_line`, `next_line().poll()`.
//!
//! The two ends poll different words: the producer `head`, the consumer `tail`. On a CPU all words are in one
//! [`ConnControl`]; between GPUs each is in the memory of the end that polls it, so that no poll crosses a link
//! ([`ConnWords`]).

use super::credit::has_credit;
use super::ping_pong::Place;
use crate::abi::{ConnControl, SlotHeader, SlotLine, Step};

/// The location of a connection's words.
#[derive(Clone, Copy)]
pub struct ConnWords<'a> {
    /// The block whose `head` is used. It is in the producer's memory, since the producer polls it.
    pub producer_side: &'a ConnControl,
    /// The block whose `tail` and `headers` are used. It is in the consumer's memory, since the consumer polls them.
    pub consumer_side: &'a ConnControl,
}

impl<'a> ConnWords<'a> {
    /// Both sides in one block.
    pub fn in_one(control: &'a ConnControl) -> Self {
        ConnWords { producer_side: control, consumer_side: control }
    }
}

/// A producer's progress, in plain numbers: a kernel loads it at the start and stores it at the end.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProducerCursor {
    step: Step,
    /// The last value read of `head`. Reading the word costs a line from the consumer's cache; once per round of
    /// the slots is enough.
    head_seen: u64,
}

/// A consumer's progress.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConsumerCursor {
    step: Step,
    tail_seen: u64,
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<ProducerCursor>() == 16 && offset_of!(ProducerCursor, head_seen) == 8);
    assert!(size_of::<ConsumerCursor>() == 16 && offset_of!(ConsumerCursor, tail_seen) == 8);
};

impl ProducerCursor {
    /// A producer whose consumer has consumed everything up to `step`.
    pub const fn at(step: Step) -> Self {
        ProducerCursor { step, head_seen: step.0 }
    }

    /// A producer at `step` that knows of so many steps that its consumer has consumed them.
    pub const fn seen(step: Step, head_seen: u64) -> Self {
        ProducerCursor { step, head_seen }
    }

    /// A producer that has filled the slot of `step` in an exchange with its consumer, whose message of the same exchange has come: both
    /// send one message in it. The consumer has consumed everything before `step`, whatever `head` says (`device/src/prims/short.rs`).
    pub const fn after_exchange(step: Step) -> Self {
        ProducerCursor { step: step.next(), head_seen: step.0 }
    }

    /// The step that will be produced next.
    #[inline]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Whether the slot of [`Self::step`] is empty, in a buffer of so many slots.
    #[inline]
    pub fn poll_credit(&mut self, words: ConnWords<'_>, slots: usize) -> bool {
        if self.knows_credit(slots) {
            return true;
        }
        self.read_head(words);
        self.knows_credit(slots)
    }

    /// Whether it is known to be empty, without a look at its consumer's words.
    #[inline]
    pub fn knows_credit(&self, slots: usize) -> bool {
        has_credit(self.step.0, self.head_seen, slots)
    }

    /// What is known already may be more than `head` says: [`Self::after_exchange`].
    #[inline]
    fn read_head(&mut self, words: ConnWords<'_>) {
        // ACQUIRE pairs with RELEASE in ConsumerCursor::release: the consumer's reads of the slots are over.
        self.head_seen = self.head_seen.max(words.producer_side.head.load_acquire());
    }

    /// Reads `head` if at most half of so many slots are known to be empty.
    #[inline]
    pub fn poll_credit_ahead(&mut self, words: ConnWords<'_>, slots: usize) {
        if !has_credit(self.step.0 + slots as u64 / 2, self.head_seen, slots) {
            self.read_head(words);
        }
    }

    /// Publishes the filled slot with its header (Simple).
    #[inline]
    pub fn publish(&mut self, words: ConnWords<'_>, header: SlotHeader) {
        self.announce(words, header);
        self.publish_announced(words);
    }

    /// Says what the slot is going to hold. Nobody looks before it is published.
    #[inline]
    pub fn announce(&self, words: ConnWords<'_>, header: SlotHeader) {
        words.consumer_side.headers[self.step.slot()].store_relaxed(header.to_word());
    }

    /// Publishes the filled slot, which [`Self::announce`] has given its header: over a link, a release behind it takes a way there and back.
    #[inline]
    pub fn publish_announced(&mut self, words: ConnWords<'_>) {
        self.step = self.step.next();
        // RELEASE pairs with ACQUIRE in ConsumerCursor::poll: a reader that sees this tail sees header and payload.
        words.consumer_side.tail.store_release(self.step.0);
    }

    /// The same in the slot's line, between processors. The message lies at `place`.
    #[inline]
    pub fn publish_in_line(&mut self, words: ConnWords<'_>, header: SlotHeader, place: Place) {
        let line = &words.consumer_side.lines[self.step.slot()];
        line.header.store_relaxed(header.to_word());
        self.step = self.step.next();
        // RELEASE pairs with ACQUIRE in NextLine::poll: a reader that sees this tail sees header and payload.
        line.tail.store_release(self.step.0 | place.bits());
    }

    /// Advances without publishing: the slot's own lines carry its flags (LL, LL128), or another thread of the block
    /// publishes it.
    #[inline]
    pub fn advance(&mut self) {
        self.step = self.step.next();
    }

    /// Whether the consumer has consumed the slot of `step`.
    #[inline]
    pub fn poll_consumed(&mut self, words: ConnWords<'_>, step: Step) -> bool {
        if self.head_seen <= step.0 {
            self.read_head(words);
        }
        self.head_seen > step.0
    }

    /// Whether the consumer has consumed everything.
    #[inline]
    pub fn is_drained(&self, words: ConnWords<'_>) -> bool {
        // ACQUIRE pairs with RELEASE in ConsumerCursor::release.
        words.producer_side.head.load_acquire() >= self.step.0
    }
}

impl ConsumerCursor {
    /// A consumer that has consumed everything up to `step`, with nothing published beyond.
    pub const fn at(step: Step) -> Self {
        ConsumerCursor { step, tail_seen: step.0 }
    }

    /// The step that will be consumed next.
    #[inline]
    pub fn step(&self) -> Step {
        self.step
    }

    /// The header of the next slot, if it has been published (Simple).
    #[inline]
    pub fn poll(&mut self, words: ConnWords<'_>) -> Option<SlotHeader> {
        if self.tail_seen <= self.step.0 {
            // ACQUIRE pairs with RELEASE in ProducerCursor::publish: header and payload are visible.
            self.tail_seen = words.consumer_side.tail.load_acquire();
            if self.tail_seen <= self.step.0 {
                return None;
            }
        }
        let header = &words.consumer_side.headers[self.step.slot()];
        Some(SlotHeader::from_word(header.load_relaxed()))
    }

    /// The line of the next slot, in which it is published.
    #[inline]
    pub fn next_line<'a>(&self, words: ConnWords<'a>) -> NextLine<'a> {
        NextLine { line: &words.consumer_side.lines[self.step.slot()], tail: self.step.0 + 1 }
    }

    /// Frees the slot.
    #[inline]
    pub fn release(&mut self, words: ConnWords<'_>) {
        self.step = self.step.next();
        // RELEASE pairs with ACQUIRE in ProducerCursor::poll_credit: our reads of the slot come first.
        words.producer_side.head.store_release(self.step.0);
    }

    /// Frees a slot whose every word carries its own flag (LL). No ordering is needed: a read of such a word is
    /// complete once its flag has been seen, and no later write changes the value read. On a GPU this saves a fence
    /// across the link.
    #[inline]
    pub fn release_flagged(&mut self, words: ConnWords<'_>) {
        self.step = self.step.next();
        words.producer_side.head.store_relaxed(self.step.0);
    }

    /// Advances without freeing the slot.
    #[inline]
    pub fn advance(&mut self) {
        self.step = self.step.next();
    }
}

/// The line in which a slot is published, to be polled.
#[derive(Clone, Copy)]
pub struct NextLine<'a> {
    line: &'a SlotLine,
    /// What its `tail` is once the slot is published. The producer cannot be a round ahead: the slot has not been released.
    tail: u64,
}

impl NextLine<'_> {
    /// The header of the slot, if it has been published.
    #[inline]
    pub fn poll(&self) -> Option<SlotHeader> {
        // ACQUIRE pairs with RELEASE in ProducerCursor::publish_in_line: header and payload are visible.
        let (_, tail) = Place::split(self.line.tail.load_acquire());
        (tail == self.tail).then(|| SlotHeader::from_word(self.line.header.load_relaxed()))
    }

    /// Where the message of the slot lies, once it has been published here. What is published otherwise (LL, LL128) lies in slots.
    #[inline]
    pub fn place(&self) -> Place {
        let (place, tail) = Place::split(self.line.tail.load_relaxed());
        if tail == self.tail { place } else { Place::Slot }
    }
}

/// The producing end.
pub struct StepProducer<'a> {
    words: ConnWords<'a>,
    cursor: ProducerCursor,
}

/// The consuming end.
pub struct StepConsumer<'a> {
    words: ConnWords<'a>,
    cursor: ConsumerCursor,
}

/// Both ends of a fresh connection. Each process keeps its own and drops the other.
pub fn split(control: &ConnControl) -> (StepProducer<'_>, StepConsumer<'_>) {
    split_over(ConnWords::in_one(control))
}

/// As [`split`], for words in separate blocks.
pub fn split_over(words: ConnWords<'_>) -> (StepProducer<'_>, StepConsumer<'_>) {
    (
        StepProducer { words, cursor: ProducerCursor::default() },
        StepConsumer { words, cursor: ConsumerCursor::default() },
    )
}

impl StepProducer<'_> {
    /// See [`ProducerCursor::step`].
    #[inline]
    pub fn step(&self) -> Step {
        self.cursor.step()
    }

    /// See [`ProducerCursor::poll_credit`].
    #[inline]
    pub fn poll_credit(&mut self, slots: usize) -> bool {
        self.cursor.poll_credit(self.words, slots)
    }

    /// See [`ProducerCursor::poll_consumed`].
    #[inline]
    pub fn poll_consumed(&mut self, step: Step) -> bool {
        self.cursor.poll_consumed(self.words, step)
    }

    /// See [`ProducerCursor::publish`].
    #[inline]
    pub fn publish(&mut self, header: SlotHeader) {
        self.cursor.publish(self.words, header);
    }

    /// See [`ProducerCursor::publish_in_line`].
    #[inline]
    pub fn publish_in_line(&mut self, header: SlotHeader) {
        self.publish_at(header, Place::Slot);
    }

    /// The same, for a message that lies there.
    #[inline]
    pub fn publish_at(&mut self, header: SlotHeader, place: Place) {
        self.cursor.publish_in_line(self.words, header, place);
    }

    /// See [`ProducerCursor::advance`].
    #[inline]
    pub fn advance(&mut self) {
        self.cursor.advance();
    }

    /// See [`ProducerCursor::is_drained`].
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.cursor.is_drained(self.words)
    }
}

impl StepConsumer<'_> {
    /// See [`ConsumerCursor::step`].
    #[inline]
    pub fn step(&self) -> Step {
        self.cursor.step()
    }

    /// See [`ConsumerCursor::poll`].
    #[inline]
    pub fn poll(&mut self) -> Option<SlotHeader> {
        self.cursor.poll(self.words)
    }

    /// Polls what [`ConsumerCursor::next_line`] returns.
    #[inline]
    pub fn poll_line(&self) -> Option<SlotHeader> {
        self.cursor.next_line(self.words).poll()
    }

    /// See [`NextLine::place`].
    #[inline]
    pub fn place(&self) -> Place {
        self.cursor.next_line(self.words).place()
    }

    /// See [`ConsumerCursor::release`].
    #[inline]
    pub fn release(&mut self) {
        self.cursor.release(self.words);
    }

    /// See [`ConsumerCursor::advance`].
    #[inline]
    pub fn advance(&mut self) {
        self.cursor.advance();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::credit::STEPS;
    use super::*;

    #[test]
    fn a_producer_stops_eight_steps_ahead() {
        let control = ConnControl::default();
        let (mut producer, mut consumer) = split(&control);
        for step in 0..STEPS as u32 {
            assert!(producer.poll_credit(STEPS));
            producer.publish(SlotHeader { tag: 7, len_bytes: step });
        }
        assert!(!producer.poll_credit(STEPS));
        assert_eq!(consumer.poll(), Some(SlotHeader { tag: 7, len_bytes: 0 }));
        consumer.release();
        assert!(producer.poll_credit(STEPS));
        assert!(!producer.is_drained());
    }

    /// Steps of all protocols count, and a buffer of fewer slots is full earlier.
    #[test]
    fn a_buffer_of_fewer_slots_is_full_earlier() {
        let control = ConnControl::default();
        let (mut producer, mut consumer) = split(&control);
        (0..5).for_each(|_| producer.advance());
        for consumed in 0..5 {
            assert_eq!([1, 4, 8].map(|slots| producer.poll_credit(slots)), [false, consumed >= 2, true]);
            consumer.release();
        }
        assert!(producer.poll_credit(1));
    }

    #[test]
    fn headers_arrive_in_order_over_many_wraps() {
        let control = ConnControl::default();
        let (mut producer, mut consumer) = split(&control);
        for step in 0..1000u32 {
            assert_eq!(consumer.poll(), None);
            assert!(producer.poll_credit(STEPS));
            producer.publish(SlotHeader { tag: step, len_bytes: !step });
            assert_eq!(consumer.poll(), Some(SlotHeader { tag: step, len_bytes: !step }));
            consumer.release();
        }
        assert!(producer.is_drained());
    }

    /// Slots whose own lines carry flags (LL) are of the same steps, and leave the slot's line as it is.
    #[test]
    fn lines_arrive_in_order_among_steps_without() {
        let control = ConnControl::default();
        let (mut producer, mut consumer) = split(&control);
        for step in 0..1000u32 {
            assert_eq!(consumer.poll_line(), None);
            assert!(producer.poll_credit(STEPS));
            if step % 5 == 3 {
                producer.advance();
            } else {
                producer.publish_in_line(SlotHeader { tag: step, len_bytes: !step });
                assert_eq!(consumer.poll_line(), Some(SlotHeader { tag: step, len_bytes: !step }));
            }
            consumer.release();
        }
    }
}
