//! A user's message as lines of LL128, and what each thread has of them.
//!
//! A line is moved by [`Lines::LINE_THREADS`] threads: by one on a CPU, by eight on a GPU, each with its own words of the line.

use super::{unaligned, words};
use crate::gpu::Lines;
use oxccl_shared::proto::ll128::{DATA_BYTES, DATA_WORDS, LINE_WORDS};

/// A thread's words of a line.
pub(super) type LineWords = [u64; LINE_WORDS];

/// Of a message's words: all are whole and aligned.
pub(super) const PLAIN: u8 = 0;
/// Of words anywhere: whole ones are moved without a call.
pub(super) const INLINE: u8 = 1;
/// Of words anywhere: those that are not aligned are moved by calls. Less code, and each waits for the one before.
pub(super) const CALLS: u8 = 2;

/// Which words of a line are this thread's: the first, and how many.
#[inline(always)]
pub(super) fn share<B: Lines>(block: &B) -> (usize, usize) {
    let count = LINE_WORDS / B::LINE_THREADS;
    (block.thread() % B::LINE_THREADS * count, count)
}

/// The lines of a message that are this thread's, each with whether it is one: a team goes through them in lock step, and some of
/// it may have none in the last round.
pub(super) struct OwnLines {
    /// Of the team, and this thread's place in it.
    next: usize,
    within: usize,
    step: usize,
    count: usize,
}

impl OwnLines {
    #[inline(always)]
    pub(super) fn of<B: Lines>(block: &B, len_bytes: usize) -> OwnLines {
        OwnLines {
            next: block.thread() / B::TEAM_THREADS * (B::TEAM_THREADS / B::LINE_THREADS),
            within: block.thread() % B::TEAM_THREADS / B::LINE_THREADS,
            step: block.threads() / B::LINE_THREADS,
            count: len_bytes.div_ceil(DATA_BYTES),
        }
    }
}

impl Iterator for OwnLines {
    type Item = (usize, bool);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, bool)> {
        if self.next >= self.count {
            return None;
        }
        let at = self.next + self.within;
        self.next += self.step;
        Some((at, at < self.count))
    }
}

/// Whether a message of `len_bytes` has a line `at`.
#[inline(always)]
pub(super) fn has_line(len_bytes: usize, at: usize) -> bool {
    at * DATA_BYTES < len_bytes
}

/// Whether a thread's words of a line, `own` of them and the first at `at`, are all whole and none is aligned, `left_bytes` being the bytes
/// from there to the end of the message. One thread of a CPU moves words one by one.
#[inline(always)]
fn lie_between<B: Lines>(at: usize, own: usize, left_bytes: isize) -> bool {
    const { assert!(B::LINE_THREADS <= LINE_WORDS / 2) };
    B::LINE_THREADS > 1 && !at.is_multiple_of(8) && (own * 8) as isize <= left_bytes
}

/// Line `at` of the message that lies `len_bytes` long at `from`; zeroes beyond.
///
/// # Safety
/// 1. `from` is readable for `len_bytes`.
#[allow(clippy::needless_range_loop, reason = "the compiler unrolls these, not the iterators")]
#[inline(always)]
pub(super) unsafe fn load<B: Lines, const WORDS: u8>(
    block: &B,
    from: *const u8,
    len_bytes: usize,
    at: usize,
) -> LineWords {
    let (start, count) = share(block);
    let offset = at * DATA_BYTES + start * 8;
    let from = from.wrapping_add(offset);
    let mut words = [0; LINE_WORDS];
    let own = count.min(DATA_WORDS - start);
    if WORDS == INLINE && lie_between::<B>(from.addr(), own, len_bytes as isize - offset as isize) {
        // SAFETY: obligation 1: all own words lie within the message, and none is aligned.
        unsafe { unaligned::load(&mut words[..count], from, own == count) };
        return words;
    }
    for i in 0..count {
        if start + i < DATA_WORDS && offset + i * 8 < len_bytes {
            let from = from.wrapping_add(i * 8);
            // SAFETY: obligation 1: word i begins within the message; of a plain one it ends there too, and is aligned.
            words[i] = unsafe {
                if WORDS == PLAIN {
                    from.cast::<u64>().read()
                } else {
                    words::load_one(from, len_bytes - offset - i * 8)
                }
            };
        }
    }
    words
}

/// Writes line `at` of the message that goes to `to`, but no byte from `len_bytes` on.
///
/// # Safety
/// 1. `to` is writable for `len_bytes`.
#[allow(clippy::needless_range_loop, reason = "as in `load`")]
#[inline(always)]
pub(super) unsafe fn put<B: Lines, const WORDS: u8>(
    block: &B,
    to: *mut u8,
    len_bytes: usize,
    at: usize,
    words: &LineWords,
) {
    let (start, count) = share(block);
    let offset = at * DATA_BYTES + start * 8;
    let to = to.wrapping_add(offset);
    let own = count.min(DATA_WORDS - start);
    if WORDS == INLINE && lie_between::<B>(to.addr(), own, len_bytes as isize - offset as isize) {
        // SAFETY: as in `load`.
        unsafe { unaligned::store(to, &words[..count], own == count) };
        return;
    }
    for i in 0..count {
        if start + i < DATA_WORDS && offset + i * 8 < len_bytes {
            let to = to.wrapping_add(i * 8);
            // SAFETY: as in `load`.
            unsafe {
                if WORDS == PLAIN {
                    to.cast::<u64>().write(words[i])
                } else {
                    words::store_one(to, words[i], len_bytes - offset - i * 8)
                }
            };
        }
    }
}
