//! Copies to or from memory whose lines another processor has: they are asked for some way ahead.
//!
//! A slot's lines lie in the caches of the connection's other end: a producer has to take each from its reader, a reader from its writer,
//! 100 ns and more. Both go on at the same time only as far as the processor asks for several lines at once. Stores retire in order, and
//! what waits behind them asks for little: a copy of 2 KiB into a slot took 0.32 us by memcpy, and takes 0.20 where each line is asked for,
//! to be written, eight lines before its turn (docs/measurements/2026-11-25-cpu-peers.md).

/// Lines that are asked for before the copy comes to them: 256 bytes to 2 KiB take the same time.
const AHEAD_BYTES: usize = 512;
const LINE_BYTES: usize = 64;
/// Shorter copies are over before what they ask for could come.
const MIN_BYTES: usize = 2 * LINE_BYTES;
/// From here on the processor's own prefetchers have understood, and memcpy need not read what it overwrites.
const MAX_BYTES: usize = 32 << 10;

/// Whether a copy of so many bytes is faster so.
#[inline(always)]
pub(super) fn pays(len_bytes: usize) -> bool {
    cfg!(all(target_arch = "x86_64", not(miri))) && (MIN_BYTES..=MAX_BYTES).contains(&len_bytes)
}

/// Copies.
///
/// # Safety
/// `src` is readable and `dst` writable for `len_bytes`, and they do not overlap.
#[inline(never)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len_bytes: usize) {
    let asked = AHEAD_BYTES.min(len_bytes);
    for at in (0..asked).step_by(LINE_BYTES) {
        ask(dst.wrapping_add(at), src.wrapping_add(at));
    }
    let mut at = 0;
    while at + LINE_BYTES <= len_bytes {
        if at + AHEAD_BYTES < len_bytes {
            ask(dst.wrapping_add(at + AHEAD_BYTES), src.wrapping_add(at + AHEAD_BYTES));
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

/// Asks for two lines, the one to write and the other to read. Neither has to exist.
#[inline(always)]
fn ask(_dst: *mut u8, _src: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: hints, which change nothing and never fault. The compiler has PREFETCHW only for processors that it is told have it; 64-bit ones
    // that do not take it for a NOP.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", "prefetchw [{}]", in(reg) _src, in(reg) _dst, options(nostack, preserves_flags, readonly));
    }
}
