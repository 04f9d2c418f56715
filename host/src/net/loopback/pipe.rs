//! A ring buffer between two threads.

use crate::net::io::{Piece, StreamIo, pieces_bytes};
use oxccl_shared::sync::{Sys, Word};
use rustix::io::Errno;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// The writing end.
pub(super) struct PipeWriter {
    ring: Arc<Ring>,
    head: u64,
}

/// The reading end.
pub(super) struct PipeReader {
    ring: Arc<Ring>,
    tail: u64,
}

/// Bytes `tail..head` of an endless stream are in the ring, each at its number modulo the length.
struct Ring {
    /// Each byte has one owner at any time: the writer outside of `tail..head`, the reader inside.
    bytes: Box<[UnsafeCell<u8>]>,
    /// Writer: the writing end.
    head: Word<u64, Sys>,
    is_writer_gone: Word<u32, Sys>,
    /// Writer: the reading end.
    tail: Word<u64, Sys>,
    is_reader_gone: Word<u32, Sys>,
}

// SAFETY: `bytes` is accessed as its comment says, and ownership passes with `head` and `tail`.
unsafe impl Sync for Ring {}
// SAFETY: bytes belong to no thread.
unsafe impl Send for Ring {}

/// A ring of `len_bytes`, a power of two.
pub(super) fn pipe(len_bytes: usize) -> (PipeWriter, PipeReader) {
    assert!(len_bytes.is_power_of_two());
    let ring = Arc::new(Ring {
        bytes: (0..len_bytes).map(|_| UnsafeCell::new(0)).collect(),
        head: Word::new(0),
        is_writer_gone: Word::new(0),
        tail: Word::new(0),
        is_reader_gone: Word::new(0),
    });
    (PipeWriter { ring: ring.clone(), head: 0 }, PipeReader { ring, tail: 0 })
}

impl Ring {
    /// The address of byte `number`, and how many bytes are contiguous from there.
    fn place(&self, number: u64) -> (*mut u8, usize) {
        let at = (number % self.bytes.len() as u64) as usize;
        let run = &self.bytes[at..];
        (run.as_ptr().cast_mut().cast(), run.len())
    }
}

/// Copies between the ring, from byte `at` on, and `pieces`, at most `max_bytes`. `copy` gets an address in the ring, one in a
/// piece and a length. Returns bytes copied.
fn walk(
    ring: &Ring,
    mut at: u64,
    pieces: &[Piece],
    max_bytes: u64,
    copy: impl Fn(*mut u8, *mut u8, usize),
) -> u64 {
    let mut left_bytes = max_bytes;
    for piece in pieces {
        let mut offset = 0;
        while offset < piece.iov_len && left_bytes > 0 {
            let (start, run_bytes) = ring.place(at);
            let len_bytes = run_bytes.min(piece.iov_len - offset).min(left_bytes as usize);
            copy(start, piece.iov_base.cast::<u8>().wrapping_add(offset), len_bytes);
            offset += len_bytes;
            at += len_bytes as u64;
            left_bytes -= len_bytes as u64;
        }
    }
    max_bytes - left_bytes
}

impl StreamIo for PipeWriter {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        // ACQUIRE pairs with RELEASE in the reader's `drop`.
        if self.ring.is_reader_gone.load_acquire() != 0 {
            return Err(Errno::PIPE);
        }
        // ACQUIRE pairs with RELEASE in `read`: what was read may be overwritten.
        let free_bytes = self.ring.bytes.len() as u64 - (self.head - self.ring.tail.load_acquire());
        let written_bytes = walk(&self.ring, self.head, pieces, free_bytes, |ring, piece, len_bytes| {
            // SAFETY: the caller's pieces are readable; this part of the ring is the writer's, and no piece lies in it.
            unsafe { ring.copy_from_nonoverlapping(piece, len_bytes) };
        });
        if written_bytes == 0 && pieces_bytes(pieces) > 0 {
            return Err(Errno::AGAIN);
        }
        self.head += written_bytes;
        // RELEASE pairs with ACQUIRE in `read`.
        self.ring.head.store_release(self.head);
        Ok(written_bytes as usize)
    }

    unsafe fn read(&mut self, _pieces: &mut [Piece]) -> Result<usize, Errno> {
        Err(Errno::BADF)
    }
}

impl StreamIo for PipeReader {
    unsafe fn write(&mut self, _pieces: &[Piece]) -> Result<usize, Errno> {
        Err(Errno::BADF)
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        // Before the head: afterwards, a closing writer's last bytes are visible. ACQUIRE pairs with RELEASE in the
        // writer's `drop`.
        let is_writer_gone = self.ring.is_writer_gone.load_acquire() != 0;
        // ACQUIRE pairs with RELEASE in `write`.
        let there_bytes = self.ring.head.load_acquire() - self.tail;
        if there_bytes == 0 {
            return if is_writer_gone { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let read_bytes = walk(&self.ring, self.tail, pieces, there_bytes, |ring, piece, len_bytes| {
            // SAFETY: the caller's pieces are writable; this part of the ring is the reader's, and no piece lies in it.
            unsafe { piece.copy_from_nonoverlapping(ring, len_bytes) };
        });
        self.tail += read_bytes;
        // RELEASE pairs with ACQUIRE in `write`.
        self.ring.tail.store_release(self.tail);
        Ok(read_bytes as usize)
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        // RELEASE pairs with ACQUIRE in `read`.
        self.ring.is_writer_gone.store_release(1);
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        // RELEASE pairs with ACQUIRE in `write`.
        self.ring.is_reader_gone.store_release(1);
    }
}
