//! Choices out of bytes.

/// Takes numbers and pieces from the front of the fuzzer's bytes; what is missing counts as zero or empty.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// At most `len` bytes.
    pub fn piece(&mut self, len: usize) -> &'a [u8] {
        let (piece, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        piece
    }
}
