//! Slots that are full without having been filled: their bytes still lie where the user has them.

use oxccl_shared::fifo::STEPS;
use std::ops::Range;

/// Which slots of a block stand for bytes elsewhere.
#[derive(Default)]
pub(super) struct Loans {
    slots: [Option<Loan>; STEPS],
    count: usize,
}

/// Bytes outside the block that a slot stands for.
#[derive(Clone, Copy)]
struct Loan {
    body: *const u8,
    len_bytes: usize,
}

// SAFETY: who lends promises that the bytes may be read until the loan ends, by whichever thread has the link.
unsafe impl Send for Loan {}

impl Loans {
    /// Whether no slot is lent.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// From now on `slot` stands for these bytes.
    pub(super) fn begin(&mut self, slot: usize, body: *const u8, len_bytes: usize) {
        debug_assert!(self.slots[slot].is_none());
        self.slots[slot] = Some(Loan { body, len_bytes });
        self.count += 1;
    }

    /// From now on `slot` is itself again.
    pub(super) fn end(&mut self, slot: usize) {
        self.count -= usize::from(self.slots[slot].take().is_some());
    }

    /// Where the bytes of `slot` begin, if they are lent.
    pub(super) fn body(&self, slot: usize) -> Option<*const u8> {
        self.slots[slot].map(|loan| loan.body)
    }

    /// Ends a loan of any byte of this range of addresses: the slot, and the bytes that it stood for.
    pub(super) fn take_within(&mut self, memory: &Range<usize>) -> Option<(usize, *const u8, usize)> {
        let touches = |loan: &Loan| {
            let start = loan.body.addr();
            start < memory.end && memory.start < start + loan.len_bytes
        };
        let slot = self.slots.iter().position(|slot| slot.as_ref().is_some_and(touches))?;
        let Loan { body, len_bytes } = self.slots[slot].take()?;
        self.count -= 1;
        Some((slot, body, len_bytes))
    }
}
