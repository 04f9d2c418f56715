//! A user's buffer, anywhere in memory, with bytes around it that nobody may touch.

use super::world::Shared;

const GUARD_BYTES: usize = 48;
const GUARD: u8 = 0xa5;

/// `len` bytes, `misaligned` bytes behind a 16-byte line.
pub struct Buffer {
    lines: Vec<u128>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub fn new(len: usize, misaligned: usize) -> Self {
        let start = GUARD_BYTES + misaligned;
        let lines = vec![u128::from_ne_bytes([GUARD; 16]); (start + len + GUARD_BYTES).div_ceil(16)];
        Buffer { lines, start, len }
    }

    pub fn holding(bytes: &[u8], misaligned: usize) -> Self {
        let mut buffer = Buffer::new(bytes.len(), misaligned);
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    fn all(&self) -> &[u8] {
        // SAFETY: the lines' bytes, all initialised.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * 16) }
    }

    /// Of all its memory, guards too, so that one pointer serves whoever starts from it.
    pub fn as_mut_ptr(&mut self) -> Shared<*mut u8> {
        Shared(self.lines.as_mut_ptr().cast::<u8>().wrapping_add(self.start))
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let at = self.as_mut_ptr().0;
        // SAFETY: `len` bytes follow the start.
        unsafe { std::slice::from_raw_parts_mut(at, self.len) }
    }

    /// The buffer's bytes, when it is clear that those around it are untouched.
    pub fn bytes(&self) -> &[u8] {
        let (before, rest) = self.all().split_at(self.start);
        let (bytes, behind) = rest.split_at(self.len);
        assert!(before.iter().chain(behind).all(|byte| *byte == GUARD), "bytes around a buffer were written");
        bytes
    }
}
