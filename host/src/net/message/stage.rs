//! Bytes read ahead on the control stream.

use super::header::HEADER_BYTES;
use crate::net::io::{Piece, piece};

/// How far is read ahead of what is known: a header and a short body arrive in one call, and the copy out of here is of bytes
/// that the kernel has just put into the cache.
pub(super) const STAGE_BYTES: usize = 4096;
/// The longest body that is guessed to follow an unknown header.
pub(super) const GUESS_MAX_BYTES: usize = 512 << 10;

pub(super) struct Stage {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Stage {
    pub(super) fn new() -> Stage {
        // A wrong guess comes back here. Pages that never hold one are never touched.
        let bytes = vec![0; STAGE_BYTES + GUESS_MAX_BYTES].into_boxed_slice();
        Stage { bytes, start: 0, end: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Where to read at most `max_bytes` ahead. At most part of a header is moved to the front to make room.
    pub(super) fn room(&mut self, max_bytes: usize) -> Piece {
        debug_assert!(self.len() < HEADER_BYTES);
        if self.len() > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, self.len());
        let room = &mut self.bytes[self.end..STAGE_BYTES];
        piece(room.as_mut_ptr(), room.len().min(max_bytes))
    }

    /// So many bytes were read into [`Self::room`].
    pub(super) fn add(&mut self, len_bytes: usize) {
        self.end += len_bytes;
    }

    /// Adds bytes that came before those here, which are at most a header.
    ///
    /// # Safety
    /// 1. `from` is readable for `len_bytes`, and not of the stage.
    #[inline]
    pub(super) unsafe fn prepend(&mut self, from: *const u8, len_bytes: usize) {
        if len_bytes > 0 {
            let kept_bytes = self.len();
            self.bytes.copy_within(self.start..self.end, len_bytes);
            (self.start, self.end) = (0, len_bytes + kept_bytes);
            // SAFETY: obligation 1; the index checks that there is room.
            unsafe { self.bytes[..len_bytes].as_mut_ptr().copy_from_nonoverlapping(from, len_bytes) };
        }
    }

    pub(super) fn take_header(&mut self) -> Option<[u8; HEADER_BYTES]> {
        let header = *self.bytes[self.start..self.end].first_chunk()?;
        self.start += HEADER_BYTES;
        Some(header)
    }

    /// At most `max_bytes` from the front.
    pub(super) fn take(&mut self, max_bytes: usize) -> &[u8] {
        let start = self.start;
        self.start += self.len().min(max_bytes);
        &self.bytes[start..self.start]
    }
}
