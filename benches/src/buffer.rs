//! Layer: perf / buffer.
//! Takes: the greatest size of a run.
//! Gives: memory for calls with guards around the part that a call may touch.
//! Never: reallocates; every engine and every size uses the same memory.

use std::ops::Range;

/// Bytes watched on each side of a call's part.
const GUARD_BYTES: usize = 4096;
const PAGE_BYTES: usize = 4096;

/// One buffer.
pub struct Buffer {
    memory: Vec<u8>,
    /// Where the part of a call begins that is not shifted.
    origin: usize,
}

impl Buffer {
    /// A buffer for parts of up to `max_bytes`, which begin `misalign` bytes after a page border; `None` if there is no memory for it.
    pub fn new(max_bytes: usize, misalign: usize) -> Option<Buffer> {
        let bytes = max_bytes.checked_add(PAGE_BYTES + misalign + 2 * GUARD_BYTES)?;
        // The kernel grants more than there is, and kills who uses it.
        if available_bytes().is_some_and(|available| bytes as u64 > available) {
            return None;
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        // Filled with something else than zero: every page is really there before anything is timed.
        memory.resize(bytes, 1u8);
        let to_page = memory.as_ptr().align_offset(PAGE_BYTES);
        Some(Buffer { origin: to_page + GUARD_BYTES + misalign, memory })
    }

    /// The address of byte `offset` of the buffer.
    pub fn at(&mut self, offset: usize) -> *mut u8 {
        let start = self.origin + offset;
        self.memory[start..].as_mut_ptr()
    }

    /// Bytes of a part.
    pub fn part(&self, range: Range<usize>) -> &[u8] {
        &self.memory[self.origin + range.start..self.origin + range.end]
    }

    /// Bytes of a part, to be written.
    pub fn part_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.memory[self.origin + range.start..self.origin + range.end]
    }

    /// Sets the guards around the first `bytes` bytes, and those bytes too if `all`.
    pub fn arm(&mut self, bytes: usize, all: bool) {
        let (before, after) = self.guards(bytes);
        let ranges = if all { [before.start..after.end, 0..0] } else { [before, after] };
        for range in ranges {
            for i in range {
                self.memory[i] = guard_byte(i);
            }
        }
    }

    /// Guard bytes around the first `bytes` bytes that are no longer what [`Self::arm`] wrote.
    pub fn violations(&self, bytes: usize) -> u64 {
        let (before, after) = self.guards(bytes);
        self.changed(before) + self.changed(after)
    }

    /// Bytes among the first `bytes` that are no longer what [`Self::arm`] wrote.
    pub fn touched(&self, bytes: usize) -> u64 {
        self.changed(self.origin..self.origin + bytes)
    }

    fn guards(&self, bytes: usize) -> (Range<usize>, Range<usize>) {
        let end = self.origin + bytes;
        (self.origin - GUARD_BYTES..self.origin, end..end + GUARD_BYTES)
    }

    fn changed(&self, range: Range<usize>) -> u64 {
        range.filter(|&i| self.memory[i] != guard_byte(i)).count() as u64
    }
}

/// What the kernel estimates that programs can have without swapping.
pub fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Differs from neighbour to neighbour, so that a block moved as a whole is seen.
fn guard_byte(i: usize) -> u8 {
    (i as u8).wrapping_mul(167) ^ 0xa5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused() {
        assert!(Buffer::new(usize::MAX - 5000, 0).is_none());
        assert!(Buffer::new(usize::MAX, 0).is_none());
        assert!(Buffer::new(1 << 50, 0).is_none());
    }

    #[test]
    fn a_byte_outside_is_seen_and_one_inside_is_not() {
        let mut buffer = Buffer::new(1000, 3).unwrap();
        assert_eq!(buffer.at(0) as usize % PAGE_BYTES, 3);
        buffer.arm(100, true);
        assert_eq!((buffer.violations(100), buffer.touched(100)), (0, 0));
        buffer.part_mut(0..100)[99] ^= 1;
        assert_eq!((buffer.violations(100), buffer.touched(100)), (0, 1));
        buffer.part_mut(0..101)[100] ^= 1;
        assert_eq!(buffer.violations(100), 1);
    }
}
