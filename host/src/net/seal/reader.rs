//! The receiving end of an encrypted stream.

use super::record::{Altered, HEAD_BYTES, RECORD_MAX, RecordKey, body_bytes};
use crate::bootstrap::secret::Secret;
use crate::net::io::{ALTERED, Piece, StreamIo, piece, pieces_bytes};
use rustix::io::Errno;
use std::ops::Range;

/// Room for the rest of one record and most of the next.
const BUFFER_BYTES: usize = 2 * RECORD_MAX;
/// A short read asks for no more: with a record's head and tag, what it is to bring.
const SHORT_BYTES: usize = 4096;

/// Opens what is read from a stream.
pub(crate) struct SealedReader<Io> {
    io: Io,
    key: RecordKey,
    buffer: Box<[u8]>,
    /// What has come of records that are not opened yet, in the buffer.
    sealed: Range<usize>,
    /// The content of the record whose head has been opened.
    content_bytes: Option<usize>,
    /// Content that has not been read yet, before `sealed` in the buffer.
    opened: Range<usize>,
    is_altered: bool,
}

impl<Io: StreamIo> SealedReader<Io> {
    /// Over a stream on which nothing has travelled since its handshake, with the key of the other side's direction.
    pub(crate) fn new(io: Io, key: Secret) -> SealedReader<Io> {
        SealedReader {
            io,
            key: RecordKey::new(key),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            sealed: 0..0,
            content_bytes: None,
            opened: 0..0,
            is_altered: false,
        }
    }

    #[cfg(test)]
    pub(super) fn rekeying_after(self, messages: u64) -> SealedReader<Io> {
        SealedReader { key: self.key.rekeying_after(messages), ..self }
    }

    /// Opens the next record, if it is whole; says whether there is content now.
    fn open(&mut self) -> Result<bool, Altered> {
        if self.content_bytes.is_none() && self.sealed.len() >= HEAD_BYTES {
            let head = self.sealed.start..self.sealed.start + HEAD_BYTES;
            self.content_bytes = Some(self.key.open_head(&mut self.buffer[head.clone()])?);
            self.sealed.start = head.end;
        }
        let body_bytes = self.content_bytes.map(body_bytes);
        let Some(body_bytes) = body_bytes.filter(|body_bytes| self.sealed.len() >= *body_bytes) else {
            return Ok(false);
        };
        let body = self.sealed.start..self.sealed.start + body_bytes;
        let content = self.key.open_body(&mut self.buffer[body.clone()])?;
        self.opened = body.start + content.start..body.start + content.end;
        (self.sealed.start, self.content_bytes) = (body.end, None);
        Ok(true)
    }

    /// Reads more of a record that is not whole, and of those behind it. Returns whether the stream is empty now; `None` at its end.
    fn fill(&mut self, is_short: bool) -> Result<Option<bool>, Errno> {
        if self.buffer.len() - self.sealed.start < RECORD_MAX || self.sealed.is_empty() {
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
        }
        let room = &mut self.buffer[self.sealed.end..];
        let room_bytes = if is_short { room.len().min(SHORT_BYTES) } else { room.len() };
        let room = piece(room.as_mut_ptr(), room_bytes);
        let read_bytes = match is_short {
            // SAFETY: the room is ours.
            true => unsafe { self.io.read_short(room) }?,
            // SAFETY: the room is ours.
            false => unsafe { self.io.read(&mut [room]) }?,
        };
        self.sealed.end += read_bytes;
        Ok((read_bytes > 0).then_some(read_bytes < room_bytes))
    }

    /// # Safety
    /// As [`StreamIo::read`].
    unsafe fn read_into(&mut self, pieces: &[Piece], is_short: bool) -> Result<usize, Errno> {
        let (mut read_bytes, mut is_empty) = (0, false);
        let wanted_bytes = pieces_bytes(pieces);
        loop {
            // SAFETY: the caller's promise.
            let copied_bytes = unsafe { copy_to(&self.buffer[self.opened.clone()], pieces, read_bytes) };
            read_bytes += copied_bytes;
            self.opened.start += copied_bytes;
            if read_bytes == wanted_bytes {
                return Ok(read_bytes);
            }
            let more = match self.is_altered {
                true => Err(ALTERED),
                false => match self.open() {
                    Err(Altered) => {
                        self.is_altered = true;
                        Err(ALTERED)
                    }
                    Ok(true) => continue,
                    Ok(false) if is_empty => Err(Errno::AGAIN),
                    Ok(false) => self.fill(is_short),
                },
            };
            match more {
                Ok(Some(was_short)) => is_empty = was_short,
                // The end, or an error, comes again with the next call.
                Ok(None) => return Ok(read_bytes),
                Err(_) if read_bytes > 0 => return Ok(read_bytes),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Copies into these pieces, behind their first `skip_bytes`, as much as there is room. Returns how much.
///
/// # Safety
/// As [`StreamIo::read`].
unsafe fn copy_to(content: &[u8], pieces: &[Piece], mut skip_bytes: usize) -> usize {
    let mut copied_bytes = 0;
    for piece in pieces {
        let skipped_bytes = skip_bytes.min(piece.iov_len);
        skip_bytes -= skipped_bytes;
        let len_bytes = (piece.iov_len - skipped_bytes).min(content.len() - copied_bytes);
        if len_bytes > 0 {
            let from = content[copied_bytes..][..len_bytes].as_ptr();
            let to = piece.iov_base.cast::<u8>().wrapping_add(skipped_bytes);
            // SAFETY: within the content, which is ours, and within the piece, which the caller lets us write.
            unsafe { to.copy_from_nonoverlapping(from, len_bytes) };
            copied_bytes += len_bytes;
        }
    }
    copied_bytes
}

impl<Io: StreamIo> StreamIo for SealedReader<Io> {
    unsafe fn write(&mut self, _pieces: &[Piece]) -> Result<usize, Errno> {
        Err(Errno::BADF)
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.read_into(pieces, false) }
    }

    fn be_prompt(&mut self) {
        self.io.be_prompt();
    }

    /// Content, or a record whose next part is whole.
    fn has_unread(&self) -> bool {
        let part_bytes = self.content_bytes.map_or(HEAD_BYTES, body_bytes);
        !self.opened.is_empty() || self.is_altered || self.sealed.len() >= part_bytes
    }

    unsafe fn read_short(&mut self, room: Piece) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.read_into(&[room], true) }
    }
}
