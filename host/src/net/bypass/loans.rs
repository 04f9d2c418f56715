//! Slots that are full without having been filled: their bytes still lie where the user has them.

use oxccl_shared::fifo::STEPS;
use std::ops::Range;

/// Bytes that begin so soon in their page are not lent. The socket's copy of a frame mostly begins with a page, so its body
/// would be copied to a place a header's length further in its page than it comes from: then each of the copy's loads looks
/// to the processor like the store before it. 512 KiB in place, AMD Zen 5: 150 us lent from the start of a page, 97 us from
/// its middle, 110 us through the slot (docs/measurements/2026-11-21-open-mpi.md).
const PAGE_START_BYTES: usize = 128;
const PAGE_BYTES: usize = 4096;

/// Which slots of a block stand for bytes elsewhere.
#[derive(Default)]
pub(crate) struct Loans {
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
    /// Whether bytes at this address are better lent than copied.
    pub(crate) fn pay(body: *const u8) -> bool {
        body.addr() % PAGE_BYTES >= PAGE_START_BYTES
    }

    /// Whether no slot is lent.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// From now on `slot` stands for these bytes.
    pub(crate) fn begin(&mut self, slot: usize, body: *const u8, len_bytes: usize) {
        debug_assert!(self.slots[slot].is_none());
        self.slots[slot] = Some(Loan { body, len_bytes });
        self.count += 1;
    }

    /// From now on `slot` is itself again.
    pub(crate) fn end(&mut self, slot: usize) {
        self.count -= usize::from(self.slots[slot].take().is_some());
    }

    /// Where the bytes of `slot` begin, if they are lent.
    pub(crate) fn body(&self, slot: usize) -> Option<*const u8> {
        self.slots[slot].map(|loan| loan.body)
    }

    /// Ends a loan of any byte of this range of addresses: the slot, and the bytes that it stood for.
    pub(crate) fn take_within(&mut self, memory: &Range<usize>) -> Option<(usize, *const u8, usize)> {
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
