//! Zero-copy sends: slots that are published without being filled; their bytes are still in user memory.

use oxccl_shared::fifo::STEPS;
use std::ops::Range;

/// Bytes that start so early in their page are copied, not sent zero-copy. The socket's copy of a frame mostly starts
/// at a page, so its body would be copied to an address a header's length further in its page than the source: then
/// each of the copy's loads looks to the CPU like an alias of the store before it. 512 KiB in place, AMD Zen 5: 150
/// us zero-copy from the start of a page, 97 us from its middle, 110 us through the slot
/// (docs/measurements/2026-11-21-open-mpi.md).
const PAGE_START_BYTES: usize = 128;
const PAGE_BYTES: usize = 4096;

/// The zero-copy slots of a block.
#[derive(Default)]
pub(crate) struct Loans {
    slots: [Option<Loan>; STEPS],
    count: usize,
}

/// The user's bytes of a slot.
#[derive(Clone, Copy)]
struct Loan {
    body: *const u8,
    len_bytes: usize,
}

// SAFETY: the caller of `lend` promises that the bytes may be read until the slot is released, by the thread that has
// the link.
unsafe impl Send for Loan {}

impl Loans {
    /// Whether zero-copy of bytes at this address is faster than a copy.
    pub(crate) fn pay(body: *const u8) -> bool {
        body.addr() % PAGE_BYTES >= PAGE_START_BYTES
    }

    /// Whether no slot is zero-copy.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// From now on `slot` represents these bytes.
    pub(crate) fn begin(&mut self, slot: usize, body: *const u8, len_bytes: usize) {
        debug_assert!(self.slots[slot].is_none());
        self.slots[slot] = Some(Loan { body, len_bytes });
        self.count += 1;
    }

    /// From now on `slot` represents its own memory again.
    pub(crate) fn end(&mut self, slot: usize) {
        self.count -= usize::from(self.slots[slot].take().is_some());
    }

    /// The address of the bytes of `slot`, if it is zero-copy.
    pub(crate) fn body(&self, slot: usize) -> Option<*const u8> {
        self.slots[slot].map(|loan| loan.body)
    }

    /// Ends zero-copy of a slot with bytes in this range of addresses; returns the slot and its bytes.
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
