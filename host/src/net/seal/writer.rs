//! The sending end of an encrypted stream.

use super::record::{CONTENT_MAX, HEAD_BYTES, RECORD_MAX, RecordKey, record_bytes};
use crate::bootstrap::secret::Secret;
use crate::net::io::{Piece, StreamIo, copy_from, piece};
use rustix::io::Errno;
use std::net::TcpStream;
use std::sync::Arc;

/// Seals what is written to a stream.
pub(crate) struct SealedWriter<Io> {
    io: Io,
    key: RecordKey,
    /// One record.
    buffer: Box<[u8]>,
    /// Of the record, what has left, and where it ends.
    sent_bytes: usize,
    end: usize,
    /// The content of the record: bytes that the owner still counts as not written.
    content_bytes: usize,
}

impl<Io: StreamIo> SealedWriter<Io> {
    /// Over a stream on which nothing has travelled since its handshake, with the key of this direction.
    pub(crate) fn new(io: Io, key: Secret) -> SealedWriter<Io> {
        let buffer = vec![0; RECORD_MAX].into_boxed_slice();
        SealedWriter { io, key: RecordKey::new(key), buffer, sent_bytes: 0, end: 0, content_bytes: 0 }
    }

    #[cfg(test)]
    pub(super) fn rekeying_after(self, messages: u64) -> SealedWriter<Io> {
        SealedWriter { key: self.key.rekeying_after(messages), ..self }
    }

    /// Sends what is left of the record. Returns its content, which then counts as written; `None` if the stream takes no more now.
    fn send(&mut self) -> Result<Option<usize>, Errno> {
        let rest = &self.buffer[self.sent_bytes..self.end];
        if !rest.is_empty() {
            // SAFETY: the rest of the record is ours, and unchanged meanwhile.
            self.sent_bytes += unsafe { self.io.write(&[piece(rest.as_ptr(), rest.len())]) }?;
        }
        let is_sent = self.sent_bytes == self.end;
        Ok(is_sent.then(|| std::mem::take(&mut self.content_bytes)))
    }

    /// Seals a record of what follows the first `skip_bytes` of these pieces; no, if nothing does.
    ///
    /// # Safety
    /// As [`StreamIo::write`].
    unsafe fn seal(&mut self, pieces: &[Piece], skip_bytes: usize) -> bool {
        let room = &mut self.buffer[HEAD_BYTES..HEAD_BYTES + CONTENT_MAX];
        // SAFETY: the caller's promise.
        let content_bytes = unsafe { copy_from(pieces, skip_bytes, room) };
        (self.sent_bytes, self.end, self.content_bytes) = (0, 0, content_bytes);
        if content_bytes > 0 {
            self.end = record_bytes(content_bytes);
            self.key.seal(&mut self.buffer[..self.end]);
        }
        content_bytes > 0
    }
}

impl<Io: StreamIo> StreamIo for SealedWriter<Io> {
    fn socket(&self) -> Option<&Arc<TcpStream>> {
        self.io.socket()
    }

    /// After `AGAIN` and after a short write the next pieces begin with the same bytes, wherever they lie: some of them may be sealed and
    /// partly on the way.
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        let mut written_bytes = 0;
        loop {
            match self.send() {
                Ok(Some(content_bytes)) => written_bytes += content_bytes,
                Err(errno) if written_bytes == 0 => return Err(errno),
                Ok(None) if written_bytes == 0 => return Err(Errno::AGAIN),
                // An error comes again with the next call.
                Ok(None) | Err(_) => return Ok(written_bytes),
            }
            // SAFETY: the caller's promise.
            if !unsafe { self.seal(pieces, written_bytes) } {
                return Ok(written_bytes);
            }
        }
    }

    unsafe fn read(&mut self, _pieces: &mut [Piece]) -> Result<usize, Errno> {
        Err(Errno::BADF)
    }

    fn is_mid_write(&self) -> bool {
        self.content_bytes > 0
    }
}
