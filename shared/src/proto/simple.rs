//! Simple: a slot is plain bytes; its header is in `ConnControl::headers`, and `ConnControl::tail` announces it. Between processors both
//! are in the slot's line, `ConnControl::lines`.
//!
//! One fence and one counter a slot: it pays from the size at which filling a slot takes longer than the counter's
//! transfer.

use crate::abi::{ConnLayout, Step};
use crate::fifo::STEPS;

/// Where a slot begins within a connection.
#[inline]
pub const fn slot_offset(layout: &ConnLayout, slot: usize) -> usize {
    layout.simple_offset() + slot * layout.simple_slot_bytes as usize
}

/// Shortest message that [`spread_offset`] moves.
pub const SPREAD_MIN_BYTES: usize = 8 << 10;

/// Where in its slot a message lies, where both ends are processors with caches and nobody else knows the slots: messages shorter than
/// half a slot take all of it in turn, round by round.
///
/// A line that its reader has in its innermost caches is dear to store to, and one that its writer has there is dear to read. Eight
/// slots' worth of a short message stays in both; a whole buffer does not, and its lines meet in the cache that both share. Between two
/// processors that share one, messages of 32 KiB take half the time so (docs/measurements/2026-11-23-cpu-near-far.md).
#[inline]
pub const fn spread_offset(slot_bytes: usize, step: Step, len_bytes: usize) -> usize {
    const PAGE_BYTES: usize = 4096;
    let piece = len_bytes.next_multiple_of(PAGE_BYTES);
    if len_bytes < SPREAD_MIN_BYTES || piece * 2 > slot_bytes {
        return 0;
    }
    (step.0 as usize / STEPS) % (slot_bytes / piece) * piece
}

/// Payload granularity: every chunk of the Simple protocol starts on this many bytes, if the user's buffer does. NCCL's
/// grain.
pub const GRAIN_BYTES: usize = 512;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_in_its_slot_and_takes_all_of_it_in_turn() {
        for slot_bytes in [256, 4096, 8192, 16 << 10, (16 << 10) + 128, 128 << 10, 200 << 10] {
            for len in
                [0, 1, 4095, SPREAD_MIN_BYTES - 1, SPREAD_MIN_BYTES, 10_001, 30 << 10, 64 << 10, 128 << 10]
            {
                let len = len.min(slot_bytes);
                let mut reached = 0;
                for step in (0..1000).map(Step) {
                    let at = spread_offset(slot_bytes, step, len);
                    assert!(
                        at + len <= slot_bytes && at.is_multiple_of(128),
                        "{len} of {slot_bytes}, step {step:?}: {at}"
                    );
                    reached = reached.max(at + len);
                }
                let unused = slot_bytes - reached;
                assert!(len < SPREAD_MIN_BYTES || unused < len + 4096, "{len} of {slot_bytes}: {reached}");
            }
        }
    }
}
