//! Words that lie between aligned ones, on a machine without unaligned accesses: a head that ends where an aligned word begins, aligned
//! words, and a tail. Never a byte beyond them, which another thread may be writing.
//!
//! ```text
//! aligned    |       0       |       1       |       2       |
//! words            |       a       |       b       |
//! accesses         |  head   |    middle     |tail |            with 4 bytes off three, else at most seven
//! ```

/// Half a word.
const HALF: usize = 4;

// Heads and tails have functions of their own, spelled out: with one for both, which takes its parts from a list, the pass over misaligned lines of
// an all-reduce of four ranks spills twice as much, and that of two is a sixth longer.

/// Reads `words` from `at`, which is no multiple of 8. The last of several may not be `with_last`: then it is not read, and anything.
///
/// # Safety
/// 1. `at` is readable for the words.
#[inline(always)]
pub unsafe fn load(words: &mut [u64], at: *const u8, with_last: bool) {
    // SAFETY: obligation 1 in both arms.
    unsafe {
        match at.addr() % 8 {
            HALF => load_off(words, at, HALF, with_last),
            off => load_off(words, at, off, with_last),
        }
    }
}

/// The same, `off` bytes behind an aligned word. Of halves, a constant, no bit is shifted.
///
/// # Safety
/// 1. As [`load`].
#[inline(always)]
unsafe fn load_off(words: &mut [u64], at: *const u8, off: usize, with_last: bool) {
    let head_bytes = 8 - off;
    let last = words.len() - 1;
    let middles = if with_last { last } else { last - 1 };
    let tail_at = at.wrapping_add(head_bytes + middles * 8);
    // SAFETY: obligation 1: the head and the tail lie within the words.
    let (mut low, tail) = unsafe { (load_head(at, off), load_tail(tail_at, off)) };
    // By the count of words, a constant, not of middles: it is unrolled.
    for (i, word) in words[..last].iter_mut().enumerate() {
        let middle_at = at.wrapping_add(head_bytes + i * 8);
        // SAFETY: obligation 1, and it is aligned.
        let middle = if i < middles { unsafe { middle_at.cast::<u64>().read() } } else { tail };
        *word = low | middle << (8 * head_bytes);
        low = middle >> (8 * off);
    }
    words[last] = low | tail << (8 * head_bytes);
}

/// Writes `words` to `at`, which is no multiple of 8, or all but the last of several.
///
/// # Safety
/// 1. `at` is writable for the words.
#[inline(always)]
pub unsafe fn store(at: *mut u8, words: &[u64], with_last: bool) {
    // SAFETY: obligation 1 in both arms.
    unsafe {
        match at.addr() % 8 {
            HALF => store_off(at, HALF, words, with_last),
            off => store_off(at, off, words, with_last),
        }
    }
}

/// The same, `off` bytes behind an aligned word.
///
/// # Safety
/// 1. As [`store`].
#[inline(always)]
unsafe fn store_off(at: *mut u8, off: usize, words: &[u64], with_last: bool) {
    let head_bytes = 8 - off;
    let last = words.len() - 1;
    let middles = if with_last { last } else { last - 1 };
    // SAFETY: obligation 1.
    unsafe { store_head(at, off, words[0]) };
    for i in 0..last {
        let middle = words[i] >> (8 * head_bytes) | words[i + 1] << (8 * off);
        if i < middles {
            // SAFETY: obligation 1, and it is aligned.
            unsafe { at.wrapping_add(head_bytes + i * 8).cast::<u64>().write(middle) };
        }
    }
    let end = if with_last || last == 0 { words[last] } else { words[last - 1] };
    // SAFETY: obligation 1.
    unsafe { store_tail(at.wrapping_add(head_bytes + middles * 8), off, end >> (8 * head_bytes)) };
}

/// The bytes from `at`, `off` bytes behind an aligned word, to the next one.
///
/// # Safety
/// 1. They are readable.
#[inline(always)]
unsafe fn load_head(at: *const u8, off: usize) -> u64 {
    if off == HALF {
        // SAFETY: obligation 1, and it is aligned.
        return u64::from(unsafe { at.cast::<u32>().read() });
    }
    let (mut head, mut done) = (0, 0);
    // SAFETY: obligation 1: each part begins where its own size divides the address, before the next aligned word.
    unsafe {
        if at.addr() & 1 != 0 {
            (head, done) = (u64::from(at.read()), 1);
        }
        if at.wrapping_add(done).addr() & 2 != 0 {
            head |= u64::from(at.wrapping_add(done).cast::<u16>().read()) << (8 * done);
            done += 2;
        }
        if at.wrapping_add(done).addr() & HALF != 0 {
            head |= u64::from(at.wrapping_add(done).cast::<u32>().read()) << (8 * done);
        }
    }
    head
}

/// `len_bytes` bytes, less than a word, from the aligned `at`.
///
/// # Safety
/// 1. They are readable.
#[inline(always)]
unsafe fn load_tail(at: *const u8, len_bytes: usize) -> u64 {
    if len_bytes == HALF {
        // SAFETY: obligation 1, and it is aligned.
        return u64::from(unsafe { at.cast::<u32>().read() });
    }
    let (mut tail, mut done) = (0, 0);
    // SAFETY: obligation 1: larger parts come first, so each is aligned.
    unsafe {
        if len_bytes & HALF != 0 {
            (tail, done) = (u64::from(at.cast::<u32>().read()), HALF);
        }
        if len_bytes & 2 != 0 {
            tail |= u64::from(at.wrapping_add(done).cast::<u16>().read()) << (8 * done);
            done += 2;
        }
        if len_bytes & 1 != 0 {
            tail |= u64::from(at.wrapping_add(done).read()) << (8 * done);
        }
    }
    tail
}

/// Writes the low bytes of `word` from `at`, `off` bytes behind an aligned word, to the next one.
///
/// # Safety
/// 1. They are writable.
#[inline(always)]
unsafe fn store_head(at: *mut u8, off: usize, word: u64) {
    if off == HALF {
        // SAFETY: obligation 1, and it is aligned.
        return unsafe { at.cast::<u32>().write(word as u32) };
    }
    let mut done = 0;
    // SAFETY: as in `load_head`.
    unsafe {
        if at.addr() & 1 != 0 {
            at.write(word as u8);
            done = 1;
        }
        if at.wrapping_add(done).addr() & 2 != 0 {
            at.wrapping_add(done).cast::<u16>().write((word >> (8 * done)) as u16);
            done += 2;
        }
        if at.wrapping_add(done).addr() & HALF != 0 {
            at.wrapping_add(done).cast::<u32>().write((word >> (8 * done)) as u32);
        }
    }
}

/// Writes the `len_bytes` low bytes of `word`, less than all, to the aligned `at`.
///
/// # Safety
/// 1. They are writable.
#[inline(always)]
unsafe fn store_tail(at: *mut u8, len_bytes: usize, word: u64) {
    if len_bytes == HALF {
        // SAFETY: obligation 1, and it is aligned.
        return unsafe { at.cast::<u32>().write(word as u32) };
    }
    let mut done = 0;
    // SAFETY: as in `load_tail`.
    unsafe {
        if len_bytes & HALF != 0 {
            at.cast::<u32>().write(word as u32);
            done = HALF;
        }
        if len_bytes & 2 != 0 {
            at.wrapping_add(done).cast::<u16>().write((word >> (8 * done)) as u16);
            done += 2;
        }
        if len_bytes & 1 != 0 {
            at.wrapping_add(done).write((word >> (8 * done)) as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{load, store};

    /// Moves `count` of eight words, or all of them but the last.
    fn moves_only_its_words(off: usize, count: usize, with_last: bool) {
        let own_bytes = (count - usize::from(!with_last)) * 8;
        let from: Vec<u64> = (0..8u64).map(|i| 0x0102_0408_1020_4080 * (i + 1)).collect();
        let mut to = vec![u64::MAX; 8];
        let mut words = vec![0; count];
        // SAFETY: the words and `off` bytes lie within eight words.
        unsafe {
            load(&mut words, from.as_ptr().cast::<u8>().add(off), with_last);
            store(to.as_mut_ptr().cast::<u8>().add(off), &words, with_last);
        }
        let bytes = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_ne_bytes()).collect() };
        let (from, to) = (bytes(&from), bytes(&to));
        let end = off + own_bytes;
        assert_eq!(to[off..end], from[off..end], "{count} words {off} bytes off, the last: {with_last}");
        assert!(
            to[..off].iter().chain(&to[end..]).all(|byte| *byte == 0xff),
            "beside {count} words {off} off"
        );
    }

    #[test]
    fn words_at_every_place_are_read_and_written_and_nothing_beside_them() {
        for off in 1..8 {
            for count in 1..=5 {
                moves_only_its_words(off, count, true);
                if count > 1 {
                    moves_only_its_words(off, count, false);
                }
            }
        }
    }
}
