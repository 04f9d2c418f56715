//! Expected messages: receives known in advance, whose slots need not hold the data.

use super::BYPASS_MIN_BYTES;
use oxccl_shared::abi::Step;
use oxccl_shared::fifo::STEPS;
use std::collections::VecDeque;

/// Most expected messages of one connection; further ones go through slots.
pub(crate) const EXPECTED_MAX: usize = 32;

/// A message under Simple whose receive is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// Its first step.
    pub first: Step,
    /// The user's buffer.
    pub dst: *mut u8,
    pub len_bytes: usize,
    /// Tag of its slots' headers.
    pub tag: u32,
}

/// The user's memory for one slot's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub start: *mut u8,
    pub len_bytes: usize,
    pub tag: u32,
}

/// The slots of a block that are received in user memory.
pub(crate) struct Arrivals {
    /// Bytes of a full slot: the unit into which messages are split.
    slot_bytes: usize,
    /// In the order of their steps.
    expected: VecDeque<Expected>,
    /// Slots received, or being received, outside the block.
    placed: [Option<*mut u8>; STEPS],
    count: usize,
}

// SAFETY: the caller of `expect` promises that the bytes may be written until the operation is over, by the thread
// that has the connection.
unsafe impl Send for Arrivals {}

impl Arrivals {
    pub(crate) fn new(slot_bytes: usize) -> Arrivals {
        let expected = VecDeque::with_capacity(EXPECTED_MAX);
        Arrivals { slot_bytes, expected, placed: [None; STEPS], count: 0 }
    }

    /// Adds an expected message; messages come in the order of their steps. Ignored if too many are expected.
    pub(crate) fn expect(&mut self, message: Expected) {
        if message.len_bytes >= BYPASS_MIN_BYTES && self.expected.len() < EXPECTED_MAX {
            self.expected.push_back(message);
        }
    }

    /// The user's memory for the bytes of `step`, if there is one. Call it for steps in order.
    pub(crate) fn of(&mut self, step: Step) -> Option<Destination> {
        self.forget_before(step);
        let Expected { first, dst, len_bytes, tag } = *self.expected.front()?;
        let done_bytes = step.0.checked_sub(first.0)? as usize * self.slot_bytes;
        let len_bytes = (len_bytes - done_bytes).min(self.slot_bytes);
        let is_worth_it = len_bytes >= BYPASS_MIN_BYTES;
        is_worth_it.then(|| Destination { start: dst.wrapping_add(done_bytes), len_bytes, tag })
    }

    /// Removes messages whose last slot is before `step`: their space can be reused.
    pub(crate) fn forget_before(&mut self, step: Step) {
        let is_over = |message: &Expected| {
            step.0 >= message.first.0 + message.len_bytes.div_ceil(self.slot_bytes) as u64
        };
        while self.expected.front().is_some_and(is_over) {
            self.expected.pop_front();
        }
    }

    /// Records that the bytes of `slot` are at `start`, or will be when it is full.
    pub(crate) fn place(&mut self, slot: usize, start: *mut u8) {
        debug_assert!(self.placed[slot].is_none());
        self.placed[slot] = Some(start);
        self.count += 1;
    }

    /// The address of the bytes of `slot`, if not in it. Call it once, before emptying the slot.
    pub(crate) fn take(&mut self, slot: usize) -> Option<*mut u8> {
        let start = self.placed[slot].take();
        self.count -= usize::from(start.is_some());
        start
    }

    /// Whether all slots are in the block.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT_BYTES: usize = 64 << 10;

    fn expected(first: u64, dst: usize, len_bytes: usize) -> Expected {
        Expected { first: Step(first), dst: std::ptr::without_provenance_mut(dst), len_bytes, tag: 7 }
    }

    fn of(arrivals: &mut Arrivals, step: u64) -> Option<(usize, usize)> {
        arrivals.of(Step(step)).map(|at| (at.start.addr(), at.len_bytes))
    }

    #[test]
    fn a_message_is_cut_as_its_sender_cuts_it() {
        let mut arrivals = Arrivals::new(SLOT_BYTES);
        arrivals.expect(expected(5, 0x1000, 2 * SLOT_BYTES + BYPASS_MIN_BYTES));
        // First too short, then one whose last slot is.
        arrivals.expect(expected(8, 0x9000, 100));
        arrivals.expect(expected(9, 0xa000, SLOT_BYTES + 100));
        assert_eq!(of(&mut arrivals, 4), None);
        assert_eq!(of(&mut arrivals, 5), Some((0x1000, SLOT_BYTES)));
        assert_eq!(of(&mut arrivals, 6), Some((0x1000 + SLOT_BYTES, SLOT_BYTES)));
        assert_eq!(of(&mut arrivals, 7), Some((0x1000 + 2 * SLOT_BYTES, BYPASS_MIN_BYTES)));
        assert_eq!(of(&mut arrivals, 8), None);
        assert_eq!(of(&mut arrivals, 9), Some((0xa000, SLOT_BYTES)));
        assert_eq!(of(&mut arrivals, 10), None);
        arrivals.forget_before(Step(11));
        assert!(arrivals.expected.is_empty());
    }

    #[test]
    fn what_was_placed_is_taken_once() {
        let mut arrivals = Arrivals::new(SLOT_BYTES);
        let start = std::ptr::without_provenance_mut(0x1000);
        arrivals.place(1, start);
        assert!(!arrivals.is_empty());
        assert_eq!((arrivals.take(1), arrivals.take(1)), (Some(start), None));
        assert!(arrivals.is_empty());
    }
}
