//! Buffers that notice when someone writes beside them.

/// Bytes of guard on either side.
const GUARD_BYTES: usize = 64;
/// What guards hold.
const GUARD: u8 = 0xC3;
/// What outputs hold before anything is written.
pub const POISON: u8 = 0xA5;
/// Alignment of a buffer at offset 0.
const ALIGN: usize = 64;

/// A buffer between two guards.
pub struct Guarded {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    /// `len` poisoned bytes that start `offset` bytes after a multiple of 64.
    pub fn new(len: usize, offset: usize) -> Guarded {
        let mut memory = vec![GUARD; len + 2 * GUARD_BYTES + 2 * ALIGN];
        let base = memory.as_ptr() as usize + GUARD_BYTES;
        let start = base.next_multiple_of(ALIGN) + offset % ALIGN - (base - GUARD_BYTES);
        memory[start..start + len].fill(POISON);
        Guarded { memory, start, len }
    }

    /// The bytes between the guards.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// The bytes between the guards.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// Everything, guards included, for copies to where the library works on it, and back.
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Where the bytes between the guards start in [`Self::memory`].
    pub fn start(&self) -> usize {
        self.start
    }

    /// Whether both guards are whole.
    pub fn is_intact(&self) -> bool {
        let after = &self.memory[self.start + self.len..];
        self.memory[..self.start].iter().chain(after).all(|byte| *byte == GUARD)
    }
}

/// The elements' bytes, as they lie in memory.
pub fn bytes_of<T: oxccl::Element>(elems: &[T]) -> &[u8] {
    // SAFETY: element types are plain numbers without padding, so all their bytes are initialised.
    unsafe { std::slice::from_raw_parts(elems.as_ptr().cast(), size_of_val(elems)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_beside_the_buffer_is_noticed() {
        for offset in [0, 1, 7, 63] {
            for len in [0, 1, 100] {
                let mut buffer = Guarded::new(len, offset);
                assert_eq!(buffer.bytes().as_ptr() as usize % ALIGN, offset);
                buffer.bytes_mut().fill(1);
                assert!(buffer.is_intact());
                for beside in [buffer.start - 1, buffer.start + len] {
                    let old = std::mem::replace(&mut buffer.memory[beside], 0);
                    assert!(!buffer.is_intact());
                    buffer.memory[beside] = old;
                }
            }
        }
    }
}
