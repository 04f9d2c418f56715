//! User buffers as 8-byte words, whatever their alignment and length.

use super::unaligned;

/// GPUs have no unaligned accesses: there the compiler makes eight of one, where it cannot tell.
const UNALIGNED_IS_SLOW: bool = cfg!(not(feature = "cpu"));

/// # Safety
/// 1. `at` is readable for 8 bytes.
#[inline(always)]
unsafe fn load_word(at: *const u8) -> u64 {
    if !UNALIGNED_IS_SLOW {
        // SAFETY: obligation 1.
        return unsafe { at.cast::<u64>().read_unaligned() };
    }
    if at.addr().is_multiple_of(8) {
        // SAFETY: obligation 1, and it is aligned.
        return unsafe { at.cast::<u64>().read() };
    }
    let mut word = [0];
    // SAFETY: obligation 1, and it is not aligned.
    unsafe { unaligned::load(&mut word, at, true) };
    word[0]
}

/// # Safety
/// 1. `at` is writable for 8 bytes.
#[inline(always)]
unsafe fn store_word(at: *mut u8, word: u64) {
    if !UNALIGNED_IS_SLOW {
        // SAFETY: obligation 1.
        return unsafe { at.cast::<u64>().write_unaligned(word) };
    }
    if at.addr().is_multiple_of(8) {
        // SAFETY: obligation 1, and it is aligned.
        return unsafe { at.cast::<u64>().write(word) };
    }
    // SAFETY: obligation 1, and it is not aligned.
    unsafe { unaligned::store(at, &[word], true) };
}

/// Reads the word at `src`; bytes from `len_bytes` on read as zero. In registers throughout, and without waiting for an
/// aligned word, so that several can be under way.
///
/// # Safety
/// 1. `src` is readable for `len_bytes` bytes, or 8 if that is less; `len_bytes` is not 0.
#[inline(always)]
pub unsafe fn load_one(src: *const u8, len_bytes: usize) -> u64 {
    if len_bytes >= 8 && src.addr().is_multiple_of(8) {
        // SAFETY: obligation 1, and it is aligned.
        unsafe { src.cast::<u64>().read() }
    } else {
        // SAFETY: obligation 1.
        unsafe { load_odd(src, len_bytes) }
    }
}

/// As [`load_one`], for what is not aligned or not whole.
///
/// # Safety
/// 1. As [`load_one`].
#[cold]
#[inline(never)]
unsafe fn load_odd(src: *const u8, len_bytes: usize) -> u64 {
    if len_bytes >= 8 {
        // SAFETY: obligation 1.
        return unsafe { load_word(src) };
    }
    // Half a word is common, an odd element of four bytes, and byte by byte it takes as long as a short message's way.
    let (mut word, mut at) = (0, 0);
    if len_bytes >= 4 && src.addr().is_multiple_of(4) {
        // SAFETY: obligation 1, and it is aligned.
        (word, at) = (u64::from(unsafe { src.cast::<u32>().read() }), 4);
    }
    for i in at..len_bytes {
        // SAFETY: obligation 1.
        word |= u64::from(unsafe { src.add(i).read() }) << (8 * i);
    }
    word
}

/// Writes the word to `dst`, but no byte from `len_bytes` on.
///
/// # Safety
/// 1. `dst` is writable for `len_bytes` bytes, or 8 if that is less.
#[inline(always)]
pub unsafe fn store_one(dst: *mut u8, word: u64, len_bytes: usize) {
    if len_bytes >= 8 && dst.addr().is_multiple_of(8) {
        // SAFETY: obligation 1, and it is aligned.
        unsafe { dst.cast::<u64>().write(word) };
    } else {
        // SAFETY: obligation 1.
        unsafe { store_odd(dst, word, len_bytes) };
    }
}

/// As [`store_one`], for what is not aligned or not whole.
///
/// # Safety
/// 1. As [`store_one`].
#[cold]
#[inline(never)]
unsafe fn store_odd(dst: *mut u8, word: u64, len_bytes: usize) {
    if len_bytes >= 8 {
        // SAFETY: obligation 1.
        return unsafe { store_word(dst, word) };
    }
    let mut at = 0;
    if len_bytes >= 4 && dst.addr().is_multiple_of(4) {
        // SAFETY: obligation 1, and it is aligned.
        unsafe { dst.cast::<u32>().write(word as u32) };
        at = 4;
    }
    for i in at..len_bytes {
        // SAFETY: obligation 1.
        unsafe { dst.add(i).write((word >> (8 * i)) as u8) };
    }
}

/// Reads `words.len()` words from `src`; bytes from `len_bytes` on read as zero.
///
/// # Safety
/// 1. `src` is readable for `len_bytes` bytes.
/// 2. `words.len() * 8 < len_bytes + 8`: at most the last word is partial.
#[inline(always)]
pub unsafe fn load(words: &mut [u64], src: *const u8, len_bytes: usize) {
    let whole = (len_bytes / 8).min(words.len());
    for (i, word) in words[..whole].iter_mut().enumerate() {
        // SAFETY: obligation 1: word i ends at or before len_bytes.
        *word = unsafe { load_word(src.add(i * 8)) };
    }
    if whole < words.len() {
        let mut bytes = [0u8; 8];
        // SAFETY: obligations 1 and 2: fewer than 8 bytes remain, all readable.
        unsafe {
            core::ptr::copy_nonoverlapping(src.add(whole * 8), bytes.as_mut_ptr(), len_bytes - whole * 8)
        };
        words[whole] = u64::from_ne_bytes(bytes);
    }
}

/// Writes `words` to `dst`, but no byte from `len_bytes` on.
///
/// # Safety
/// 1. `dst` is writable for `len_bytes` bytes.
/// 2. `words.len() * 8 < len_bytes + 8`: at most the last word is partial.
#[inline(always)]
pub unsafe fn store(dst: *mut u8, words: &[u64], len_bytes: usize) {
    let whole = (len_bytes / 8).min(words.len());
    for (i, word) in words[..whole].iter().enumerate() {
        // SAFETY: obligation 1: word i ends at or before len_bytes.
        unsafe { store_word(dst.add(i * 8), *word) };
    }
    if whole < words.len() {
        let bytes = words[whole].to_ne_bytes();
        // SAFETY: obligations 1 and 2: fewer than 8 bytes remain, all writable.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), dst.add(whole * 8), len_bytes - whole * 8) };
    }
}

/// Reduces one batch in the slice's order: the user's words stand before the contribution at their position, or last.
///
/// `fetch(i, words)` brings the words of contribution `i` of `contributions`.
#[inline(always)]
pub fn reduce<B: crate::gpu::Words, E>(
    block: &B,
    acc: &mut [u64],
    contributions: usize,
    own: Option<(usize, &[u64])>,
    mut fetch: impl FnMut(usize, &mut [u64]) -> Result<(), E>,
) -> Result<(), E> {
    let mut scratch = B::batch();
    let mut filled = false;
    for i in 0..=contributions {
        if let Some((position, words)) = own
            && position.min(contributions) == i
        {
            if filled {
                block.combine(acc, words);
            } else {
                acc.copy_from_slice(words);
                filled = true;
            }
        }
        if i == contributions {
            break;
        }
        if filled {
            let words = &mut scratch.as_mut()[..acc.len()];
            fetch(i, words)?;
            block.combine(acc, words);
        } else {
            fetch(i, acc)?;
            filled = true;
        }
    }
    Ok(())
}
