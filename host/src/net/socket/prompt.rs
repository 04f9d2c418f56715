//! A socket that peeks at short messages before consuming them, which defers the ACK.
//!
//! Consuming bytes makes the operating system send an ACK: some 2 us that the waiting thread would wait too. So with
//! the low-latency hint a read of a possibly short message only peeks at the bytes; the next read, when no thread
//! waits for anything, consumes them. A thread that both reads and waits gains nothing: it has one more system call
//! before its next message. (Delaying ACKs by `TCP_QUICKACK` is no alternative: a sender with ten segments in flight
//! waits for one, at worst 40 ms.)

use crate::net::io::{Piece, StreamIo, piece, result};
use rustix::io::Errno;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Most bytes of one peek.
const SHOWN_MAX: usize = 4096;

/// The receiving end of a stream.
pub(super) struct Prompt {
    stream: TcpStream,
    /// Whether short reads peek.
    is_prompt: bool,
    /// Bytes peeked and not consumed.
    shown_bytes: usize,
    /// Buffer for consuming them: the reader has them already.
    taken: Box<[u8; SHOWN_MAX]>,
}

impl Prompt {
    pub(super) fn new(stream: TcpStream) -> Prompt {
        Prompt { stream, is_prompt: false, shown_bytes: 0, taken: Box::new([0; SHOWN_MAX]) }
    }

    /// Consumes the peeked bytes.
    #[inline]
    fn settle(&mut self) -> Result<(), Errno> {
        while self.shown_bytes > 0 {
            let taken = &mut self.taken[..self.shown_bytes];
            // SAFETY: the descriptor is open; the buffer is ours. TRUNC: the system need not write them, where it
            // supports that.
            let n = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
                libc::recv(self.stream.as_raw_fd(), taken.as_mut_ptr().cast(), taken.len(), flags)
            };
            match result(n) {
                // They were available.
                Ok(0) | Err(Errno::AGAIN) => return Err(Errno::CONNRESET),
                Ok(taken_bytes) => self.shown_bytes -= taken_bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl StreamIo for Prompt {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.write(pieces) }
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        self.settle()?;
        // SAFETY: the caller's promise.
        unsafe { self.stream.read(pieces) }
    }

    fn be_prompt(&mut self) {
        self.is_prompt = true;
    }

    unsafe fn read_short(&mut self, room: Piece) -> Result<usize, Errno> {
        if !self.is_prompt {
            // SAFETY: the caller's promise.
            return unsafe { self.read(&mut [room]) };
        }
        self.settle()?;
        let room = piece(room.iov_base.cast(), room.iov_len.min(SHOWN_MAX));
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        // SAFETY: the descriptor is open; the piece is writable by the caller's promise.
        let n = unsafe { libc::recv(self.stream.as_raw_fd(), room.iov_base, room.iov_len, flags) };
        self.shown_bytes = result(n)?;
        Ok(self.shown_bytes)
    }
}

impl Drop for Prompt {
    /// Closing a socket with unread bytes resets the connection instead of ending it.
    fn drop(&mut self) {
        // An error means that the peer is gone.
        let _ = self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn pair() -> (TcpStream, Prompt) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut prompt = Prompt::new(listener.accept().unwrap().0);
        prompt.be_prompt();
        (sender, prompt)
    }

    /// The result of one read, as soon as there are bytes.
    fn next(prompt: &mut Prompt, is_short: bool, max_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; max_bytes];
        let room = piece(bytes.as_mut_ptr(), max_bytes);
        loop {
            // SAFETY: the bytes are the vector's, which outlives the call.
            match unsafe { if is_short { prompt.read_short(room) } else { prompt.read(&mut [room]) } } {
                Ok(len) => break bytes[..len].to_vec(),
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
        }
    }

    /// In any order of short reads and others, every byte arrives once.
    #[test]
    fn bytes_come_once_however_they_are_read() {
        let (mut sender, mut prompt) = pair();
        let sent: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        sender.write_all(&sent).unwrap();
        let (mut got, mut turn) = (Vec::new(), 0);
        while got.len() < sent.len() {
            turn += 1;
            let max_bytes = [1, 16, 5000, 48, 4096][turn % 5].min(sent.len() - got.len());
            got.extend(next(&mut prompt, turn % 3 != 0, max_bytes));
        }
        assert_eq!(got, sent);
        drop(sender);
        assert!(next(&mut prompt, true, 10).is_empty() && next(&mut prompt, false, 10).is_empty());
    }

    /// Only with the hint are bytes peeked and not consumed.
    #[test]
    fn bytes_are_taken_at_once_unless_the_reader_is_prompt() {
        for is_prompt in [true, false] {
            let (mut sender, mut prompt) = pair();
            prompt.is_prompt = is_prompt;
            sender.write_all(b"short").unwrap();
            assert_eq!(next(&mut prompt, true, 100), b"short");
            assert_eq!(prompt.shown_bytes, if is_prompt { 5 } else { 0 });
        }
    }

    /// The sender sees an end, not a reset, if all that it sent has been peeked.
    #[test]
    fn an_end_that_has_seen_everything_is_no_reset() {
        let (mut sender, mut prompt) = pair();
        sender.write_all(b"everything").unwrap();
        assert_eq!(next(&mut prompt, true, 100), b"everything");
        drop(prompt);
        assert_eq!(Read::read(&mut sender, &mut [0; 10]).unwrap(), 0);
    }
}
