//! LL128: 120 bytes of data and one 8-byte flag in a 128-byte line.
//!
//! On a CPU the data are plain words released by the flag. On a GPU eight threads write the line with one instruction
//! and NVLink keeps it whole; on links that do not, the planner never chooses LL128.

use crate::abi::{SlotHeader, Step};
use crate::sync::{Pair, Sys, Word, fence_acquire};

/// Bytes of a line.
pub const LINE_BYTES: usize = 128;
/// Payload bytes of a line.
pub const DATA_BYTES: usize = 120;
/// Payload words of a line.
pub const DATA_WORDS: usize = DATA_BYTES / 8;

/// One line of a slot.
#[repr(C, align(128))]
#[derive(Default)]
pub struct Ll128Line {
    data: [Word<u64, Sys>; DATA_WORDS],
    flag: Word<u64, Sys>,
}

/// The flag of a step. Zero, the content of fresh memory, is no flag; 64 bits never wrap.
#[inline]
pub const fn flag(step: Step) -> u64 {
    step.0 + 1
}

/// Payload of a slot of `slot_bytes`: all lines but the header's.
#[inline]
pub const fn payload_bytes(slot_bytes: usize) -> usize {
    (slot_bytes / LINE_BYTES - 1) * DATA_BYTES
}

/// Payload of each hop where a slot of `slot_bytes` carries two hops; 0 if it cannot.
#[inline]
pub const fn half_payload_bytes(slot_bytes: usize) -> usize {
    (slot_bytes / LINE_BYTES - 1) / 2 * DATA_BYTES
}

/// Slot bytes of a payload of `len_bytes`.
#[inline]
pub const fn wire_bytes(len_bytes: usize) -> usize {
    (1 + len_bytes.div_ceil(DATA_BYTES)) * LINE_BYTES
}

/// Words of a line, its flag included.
pub const LINE_WORDS: usize = LINE_BYTES / 8;

impl Ll128Line {
    /// Words `2 * index` and `2 * index + 1` of the line, for thread `index` of the eight that move a line with one
    /// instruction. The last pair ends with the flag.
    #[inline]
    pub fn pair(&self, index: usize) -> &Pair<Sys> {
        assert!(index < LINE_WORDS / 2);
        // SAFETY: a line is 8 pairs, laid out one after the other and aligned (asserted below); both types are words only.
        unsafe { &*core::ptr::from_ref(self).cast::<Pair<Sys>>().add(index) }
    }

    /// Publishes up to 15 words; the rest of the line keeps its content.
    #[inline]
    pub fn store(&self, words: &[u64], flag: u64) {
        for (cell, word) in self.data.iter().zip(words) {
            cell.store_relaxed(*word);
        }
        // RELEASE pairs with the acquire fence in `load`.
        self.flag.store_release(flag);
    }

    /// Copies out `words.len()` words, if the line carries `flag`.
    #[inline]
    pub fn load(&self, words: &mut [u64], flag: u64) -> bool {
        if self.flag.load_relaxed() != flag {
            return false;
        }
        // ACQUIRE pairs with RELEASE in `store`; as a fence, so that polling an empty line stays cheap.
        fence_acquire();
        for (word, cell) in words.iter_mut().zip(&self.data) {
            *word = cell.load_relaxed();
        }
        true
    }

    /// Publishes the header of a slot, which is its line 0.
    #[inline]
    pub fn store_header(&self, header: SlotHeader, flag: u64) {
        self.store(&[header.to_word()], flag)
    }

    /// The header, if it has arrived.
    #[inline]
    pub fn load_header(&self, flag: u64) -> Option<SlotHeader> {
        let mut word = [0];
        self.load(&mut word, flag).then(|| SlotHeader::from_word(word[0]))
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Ll128Line>() == LINE_BYTES && align_of::<Ll128Line>() == 128);
    assert!(core::mem::offset_of!(Ll128Line, flag) == DATA_BYTES);
    assert!(LINE_WORDS / 2 * size_of::<Pair<Sys>>() == LINE_BYTES);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_fifteen_words() {
        let line = Ll128Line::default();
        let mut out = [0; DATA_WORDS];
        assert!(!line.load(&mut out, flag(Step(0))));
        let words: [u64; DATA_WORDS] = core::array::from_fn(|i| i as u64 * 3);
        line.store(&words, flag(Step(4)));
        assert!(line.load(&mut out, flag(Step(4))));
        assert_eq!(out, words);
        assert!(!line.load(&mut out, flag(Step(12))));
    }

    #[test]
    fn capacity_and_wire_size_agree() {
        for slot in [256usize, 4096, 32768] {
            assert_eq!(wire_bytes(payload_bytes(slot)), slot);
            let both = 2 * half_payload_bytes(slot);
            assert!(both <= payload_bytes(slot) && payload_bytes(slot) < both + 2 * DATA_BYTES);
        }
    }
}
