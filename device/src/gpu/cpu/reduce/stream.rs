//! Copies plain bytes, through the caches or past them.

use super::ahead;

#[cfg(debug_assertions)]
std::thread_local! {
    /// Whether this thread has made non-temporal stores that no fence has followed.
    static UNFENCED: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

/// Shortest non-temporal copy that is worth its fence and its partial lines.
const STREAM_MIN_BYTES: usize = 1024;

/// Copies `len_bytes`. `stream`: `dst` is memory that this CPU will not read soon, so its stores bypass the caches where the machine
/// can; they come before all later stores (they are fenced on return).
///
/// # Safety
/// 1. `src` is readable and `dst` writable for `len_bytes`, and nobody else writes the one or touches the other meanwhile.
/// 2. `dst` is `src` or does not overlap it.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len_bytes: usize, stream: bool) {
    if dst.cast_const() == src {
        return;
    }
    if stream && len_bytes >= STREAM_MIN_BYTES {
        // SAFETY: the caller's obligations 1 and 2, less the case of equal pointers.
        unsafe { copy_past_caches(dst, src, len_bytes) };
        fence();
    } else if ahead::pays(len_bytes) {
        // SAFETY: as above.
        unsafe { ahead::copy(dst, src, len_bytes) };
    } else {
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(src, dst, len_bytes) };
    }
}

/// Orders earlier non-temporal stores before later stores, as ordinary stores are ordered anyway. A release store alone does not: on x86 it is a
/// plain store, and non-temporal stores are weakly ordered (docs/memory-model.md).
#[inline(always)]
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has SSE.
    unsafe {
        core::arch::x86_64::_mm_sfence()
    };
    note_unfenced(false);
}

/// Keeps account of fences where debug assertions are on: no processor shows reliably that one is missing.
#[inline(always)]
fn note_unfenced(_is: bool) {
    #[cfg(debug_assertions)]
    UNFENCED.set(_is);
}

/// What is published has arrived.
///
/// # Panics
/// Where debug assertions are on: if this thread has made non-temporal stores since its last fence.
#[inline(always)]
pub fn assert_fenced() {
    #[cfg(debug_assertions)]
    assert!(
        !UNFENCED.get(),
        "a slot is published, and no fence follows the non-temporal stores that filled it"
    );
}

/// Copies with non-temporal stores for all whole 64-byte lines of `dst`. The caller fences after its last copy.
///
/// # Safety
/// `src` is readable and `dst` writable for `len_bytes`, and they do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, len_bytes: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    use core::ptr::copy_nonoverlapping;

    let head = dst.align_offset(64).min(len_bytes);
    let lines = (len_bytes - head) / 64;
    // SAFETY: head <= len_bytes.
    unsafe { copy_nonoverlapping(src, dst, head) };
    note_unfenced(true);
    for line in 0..lines {
        let at = head + 64 * line;
        // SAFETY: at + 64 <= head + 64 * lines <= len_bytes.
        let (from, to) = unsafe { (src.add(at).cast::<__m128i>(), dst.add(at).cast::<__m128i>()) };
        // SAFETY: the 64 bytes from `at` on are in bounds, as above; `head` has made `to` 64-byte aligned. All four
        // stores of a line follow each other, so that the write-combining buffer is flushed as one full line.
        unsafe {
            let quarters = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            _mm_stream_si128(to, quarters[0]);
            _mm_stream_si128(to.add(1), quarters[1]);
            _mm_stream_si128(to.add(2), quarters[2]);
            _mm_stream_si128(to.add(3), quarters[3]);
        }
    }
    let tail = head + 64 * lines;
    // SAFETY: tail <= len_bytes.
    unsafe { copy_nonoverlapping(src.add(tail), dst.add(tail), len_bytes - tail) };
}

/// As on x86-64, but through the caches: this machine has no portable non-temporal store.
///
/// # Safety
/// `src` is readable and `dst` writable for `len_bytes`, and they do not overlap.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, len_bytes: usize) {
    note_unfenced(true);
    // SAFETY: the caller's.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len_bytes) };
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_store_that_no_fence_follows_is_noticed() {
        let (from, mut to) = ([1u8; 4096], [0u8; 4096]);
        assert_fenced();
        // SAFETY: both have as many bytes.
        unsafe { copy_past_caches(to.as_mut_ptr(), from.as_ptr(), to.len()) };
        assert!(catch_unwind(assert_fenced).is_err());
        fence();
        assert_fenced();
        // SAFETY: as above.
        unsafe { copy(to.as_mut_ptr(), from.as_ptr(), to.len(), true) };
        assert_fenced();
    }
}
