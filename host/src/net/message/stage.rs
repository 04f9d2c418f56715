//! Bytes read ahead on the control lane.

use super::header::HEADER_BYTES;
use crate::net::io::{Piece, piece};

/// How far is read ahead of what is known: a header and a short body arrive in one call, and the copy out of here is of bytes
/// that the kernel has just put into the cache.
pub(super) const STAGE_BYTES: usize = 4096;

pub(super) struct Stage {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Stage {
    pub(super) fn new() -> Stage {
        Stage { bytes: vec![0; STAGE_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Where to read at most `max_bytes` ahead. At most part of a header is moved to the front to make room.
    pub(super) fn room(&mut self, max_bytes: usize) -> Piece {
        debug_assert!(self.len() < HEADER_BYTES);
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.len());
        let room = &mut self.bytes[self.end..];
        piece(room.as_mut_ptr(), room.len().min(max_bytes))
    }

    /// So many bytes were read into [`Self::room`].
    pub(super) fn add(&mut self, len_bytes: usize) {
        self.end += len_bytes;
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
