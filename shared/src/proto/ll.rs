//! LL, low latency: `{data u32, flag u32, data u32, flag u32}`, without any fence.
//!
//! Each 8-byte half is written in one piece and carries its own flag, so a reader that sees the flag has the data.
//! Half of the bandwidth buys one memory round trip less than a counter costs.

use crate::abi::{SlotHeader, Step};
use crate::sync::{Pair, Sys};

/// Bytes of a line.
pub const LINE_BYTES: usize = 16;
/// Payload bytes of a line.
pub const DATA_BYTES: usize = 8;

/// Number of steps after which flags could be mistaken for older ones, were the slots not [cleaned](must_clean) in
/// time.
const CLEAN_PERIOD: u64 = 1 << 30;

/// One line of a slot.
#[repr(transparent)]
#[derive(Default)]
pub struct LlLine(Pair<Sys>);

/// The flag of a step: differs from those of the 2^30 steps before. A fresh slot holds zero, which is no flag,
/// because bit 31 is always set.
#[inline]
pub const fn flag(step: Step) -> u32 {
    (step.0 as u32) | 1 << 31
}

/// Whether the producer must write every line of this step's slot, payload or not. Short messages leave the far lines
/// of a slot untouched; without this, a line last written 2^31 steps ago would count as new.
#[inline]
pub const fn must_clean(step: Step) -> bool {
    step.0 % CLEAN_PERIOD < crate::fifo::STEPS as u64 && step.0 >= CLEAN_PERIOD
}

/// Payload of a slot of `slot_bytes`: all lines but the header's.
#[inline]
pub const fn payload_bytes(slot_bytes: usize) -> usize {
    (slot_bytes / LINE_BYTES - 1) * DATA_BYTES
}

/// Slot bytes of a payload of `len_bytes`.
#[inline]
pub const fn wire_bytes(len_bytes: usize) -> usize {
    (1 + len_bytes.div_ceil(DATA_BYTES)) * LINE_BYTES
}

impl LlLine {
    /// Publishes 8 bytes of payload.
    #[inline]
    pub fn store(&self, data: u64, flag: u32) {
        let flag = (flag as u64) << 32;
        self.0.store_relaxed([data & 0xffff_ffff | flag, data >> 32 | flag]);
    }

    /// The payload, if both halves carry `flag`.
    #[inline]
    pub fn load(&self, flag: u32) -> Option<u64> {
        Self::open(self.peek(), flag)
    }

    /// The current content of the line, to be opened later: several loads can be in flight at once.
    #[inline]
    pub fn peek(&self) -> [u64; 2] {
        self.0.load_relaxed()
    }

    /// The data of a peeked line, if both halves carried `flag`.
    #[inline]
    pub fn open([low, high]: [u64; 2], flag: u32) -> Option<u64> {
        let arrived = (low >> 32) as u32 == flag && (high >> 32) as u32 == flag;
        arrived.then_some(Self::data([low, high]))
    }

    /// The data of a line whose flags have been checked.
    #[inline]
    pub fn data([low, high]: [u64; 2]) -> u64 {
        low & 0xffff_ffff | high << 32
    }

    /// Publishes the header of a slot, which is its line 0.
    #[inline]
    pub fn store_header(&self, header: SlotHeader, flag: u32) {
        self.store(header.to_word(), flag)
    }

    /// The header, if it has arrived.
    #[inline]
    pub fn load_header(&self, flag: u32) -> Option<SlotHeader> {
        self.load(flag).map(SlotHeader::from_word)
    }

    /// The same, before everything that follows: what the sender did before its fence is visible.
    #[inline]
    pub fn load_header_acquire(&self, flag: u32) -> Option<SlotHeader> {
        Self::open(self.0.load_acquire(), flag).map(SlotHeader::from_word)
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LlLine>() == LINE_BYTES && align_of::<LlLine>() == 16);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_only_its_own_flag() {
        let line = LlLine::default();
        assert_eq!(line.load(flag(Step(0))), None, "a fresh line is empty");
        line.store(0x1122_3344_5566_7788, flag(Step(9)));
        assert_eq!(line.load(flag(Step(9))), Some(0x1122_3344_5566_7788));
        assert_eq!(line.load(flag(Step(17))), None);
    }

    /// A line left over from a long message 2^31 steps ago has the flag that the reader waits for. Every slot must
    /// have been overwritten in between.
    #[test]
    fn every_slot_is_cleaned_before_its_flags_repeat() {
        for slot in 0..crate::fifo::STEPS as u64 {
            for start in [0u64, 5, CLEAN_PERIOD - 8, CLEAN_PERIOD, 3 * CLEAN_PERIOD + 16] {
                let stale = Step(start / 8 * 8 + slot);
                let repeat = Step(stale.0 + (1 << 31));
                assert_eq!(flag(stale), flag(repeat));
                let first = (stale.0 / CLEAN_PERIOD + 1) * CLEAN_PERIOD;
                let cleaning = Step(first + slot);
                assert!(must_clean(cleaning) && cleaning.slot() == stale.slot());
                assert!(cleaning > stale && cleaning < repeat);
            }
        }
    }

    #[test]
    fn capacity_and_wire_size_agree() {
        for slot in [256usize, 4096, 16384] {
            assert_eq!(wire_bytes(payload_bytes(slot)), slot);
        }
        assert_eq!(wire_bytes(0), LINE_BYTES);
        assert_eq!(wire_bytes(1), 2 * LINE_BYTES);
    }
}
