//! Copies to or from memory whose lines another processor has: they are asked for some way ahead.
//!
//! A slot's lines lie in the caches of the connection's other end: a producer has to take each from its reader, a reader from its writer,
//! 100 ns and more. Both go on at the same time only as far as the processor asks for several lines at once. Stores retire in order, and
//! what waits behind them asks for little: a copy of 2 KiB into a slot took 0.32 us by memcpy, and takes 0.20 where each line is asked for,
//! to be written, eight lines before its turn (docs/measurements/2026-11-25-cpu-peers.md).
//!
//! That holds for Intel's Xeons. On AMD's Zen 5 memcpy takes less than half the time of any loop of loads and stores, from 1 KiB on, and what is
//! asked for comes no sooner (docs/measurements/2026-11-28-cpu-zen5.md). So only processors on which it was seen to pay do it.

use crate::gpu::cpu::maker;
use oxccl_shared::sync::{Block, Word};
use std::sync::OnceLock;

/// Lines that are asked for before the copy comes to them: 256 bytes to 2 KiB take the same time.
const AHEAD_BYTES: usize = 512;
const LINE_BYTES: usize = 64;
/// Shorter copies are over before what they ask for could come.
const MIN_BYTES: usize = 2 * LINE_BYTES;
/// From here on the processor's own prefetchers have understood, and memcpy need not read what it overwrites.
const MAX_BYTES: usize = 32 << 10;
/// From here on stores of whole lines are faster, by 5 to 10 % of a broadcast; one of 4 KiB is 5 to 9 % slower by them
/// (docs/measurements/2026-11-26-cpu-messages.md).
#[cfg(target_arch = "x86_64")]
const WHOLE_LINES_MIN_BYTES: usize = 6 << 10;

/// Whether a copy of so many bytes is faster so.
#[inline(always)]
pub(super) fn pays(len_bytes: usize) -> bool {
    (MIN_BYTES..=MAX_BYTES).contains(&len_bytes) && asking_pays()
}

/// Whether this processor has lines sooner that are asked for ahead.
#[inline(always)]
pub(crate) fn asking_pays() -> bool {
    cfg!(all(target_arch = "x86_64", not(miri))) && pays_here().load_relaxed() != 0
}

/// Decides it for this process, whatever its processor is: tests run either way on any machine. One thread does so, before others ask.
#[doc(hidden)]
pub fn set_asking_pays(pays: bool) {
    pays_here().store_relaxed(pays.into());
}

#[inline(always)]
fn pays_here() -> &'static Word<u32, Block> {
    static PAYS: OnceLock<Word<u32, Block>> = OnceLock::new();
    PAYS.get_or_init(|| Word::new(maker::is_made_by(maker::INTEL).into()))
}

/// Copies, by stores of whole lines where the processor has them: it need not fetch a line that it overwrites at once.
///
/// # Safety
/// `src` is readable and `dst` writable for `len_bytes`, and they do not overlap.
#[inline(never)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len_bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if len_bytes >= WHOLE_LINES_MIN_BYTES && std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the caller's; the processor has them.
        return unsafe { copy_by_lines(dst, src, len_bytes) };
    }
    // SAFETY: the caller's.
    unsafe { copy_ahead(dst, src, len_bytes) };
}

/// # Safety
/// 1. As [`copy`].
/// 2. The processor has these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn copy_by_lines(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: obligation 1.
    unsafe { copy_ahead(dst, src, len_bytes) };
}

/// # Safety
/// 1. As [`copy`].
#[inline(always)]
unsafe fn copy_ahead(dst: *mut u8, src: *const u8, len_bytes: usize) {
    ask_to_read(src, len_bytes);
    ask_to_write(dst, len_bytes);
    let mut at = 0;
    while at + LINE_BYTES <= len_bytes {
        if at + AHEAD_BYTES < len_bytes {
            ask_to_read(src.wrapping_add(at + AHEAD_BYTES), 1);
            ask_to_write(dst.wrapping_add(at + AHEAD_BYTES), 1);
        }
        // SAFETY: the caller's: the line ends within both.
        unsafe { copy_within(dst, src, at, LINE_BYTES) };
        at += LINE_BYTES;
    }
    // SAFETY: the caller's: what is left of both.
    unsafe { copy_within(dst, src, at, len_bytes - at) };
}

/// Copies `len_bytes` from offset `at` on.
///
/// # Safety
/// Both are valid for `at + len_bytes`, as in [`copy`].
#[inline(always)]
unsafe fn copy_within(dst: *mut u8, src: *const u8, at: usize, len_bytes: usize) {
    // SAFETY: the caller's.
    unsafe { core::ptr::copy_nonoverlapping(src.wrapping_add(at), dst.wrapping_add(at), len_bytes) }
}

/// Asks for the first lines of `len_bytes` that are read soon.
#[inline(always)]
pub(crate) fn ask_to_read(from: *const u8, len_bytes: usize) {
    each_line(from, len_bytes, |_line| {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint, which changes nothing and never faults.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(_line.cast());
        }
    });
}

/// Asks for the first lines of `len_bytes` that are written soon. They leave the caches of processors that read them.
#[inline(always)]
pub(crate) fn ask_to_write(to: *mut u8, len_bytes: usize) {
    each_line(to, len_bytes, |_line| {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint, which changes nothing and never faults. The compiler would emit it only for processors that it is told have it;
        // 64-bit ones that have not take it for a NOP.
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) _line, options(nostack, preserves_flags, readonly));
        }
    });
}

#[inline(always)]
fn each_line(from: *const u8, len_bytes: usize, ask: impl Fn(*const u8)) {
    (0..AHEAD_BYTES.min(len_bytes)).step_by(LINE_BYTES).for_each(|at| ask(from.wrapping_add(at)));
}
