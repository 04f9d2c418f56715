//! A socket whose short messages are seen before they are acknowledged.
//!
//! Taking bytes out of a socket makes the operating system acknowledge them: some 2 us in which whoever waits for them waits on. So a
//! read of what may be a short message only looks at the bytes, if its reader asks for that; they are taken at the next read, when nobody
//! waits for anything. A reader that is also who waits gains nothing: it has one call of the system more before its next message.
//! (To delay acknowledgements by `TCP_QUICKACK` would not do: a sender with ten segments under way waits for one, at worst 40 ms.)

use crate::net::io::{Piece, StreamIo, piece, result};
use rustix::io::Errno;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Bytes that a look shows at most.
const SHOWN_MAX: usize = 4096;

/// The receiving end of a stream.
pub(super) struct Prompt {
    stream: TcpStream,
    /// Whether short reads only look.
    is_prompt: bool,
    /// So many bytes have been shown and not been taken.
    shown_bytes: usize,
    /// Where they go: whoever was shown them has them.
    taken: Box<[u8; SHOWN_MAX]>,
}

impl Prompt {
    pub(super) fn new(stream: TcpStream) -> Prompt {
        Prompt { stream, is_prompt: false, shown_bytes: 0, taken: Box::new([0; SHOWN_MAX]) }
    }

    /// Takes what has been shown.
    fn settle(&mut self) -> Result<(), Errno> {
        while self.shown_bytes > 0 {
            let taken = &mut self.taken[..self.shown_bytes];
            // SAFETY: the descriptor is open; the bytes are ours to write. TRUNC: they need not be, where the system can do without.
            let n = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
                libc::recv(self.stream.as_raw_fd(), taken.as_mut_ptr().cast(), taken.len(), flags)
            };
            match result(n) {
                // They were there.
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
    /// A socket that is closed with bytes in it resets the connection instead of ending it.
    fn drop(&mut self) {
        // Whoever is gone need not be told anything.
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

    /// What one read gives, as soon as there is something.
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

    /// In any order of short reads and others, every byte comes once.
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

    /// Only whoever asked for it has bytes shown and not taken.
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

    /// The sender learns of an end, not of a reset, when all that it sent has been seen.
    #[test]
    fn an_end_that_has_seen_everything_is_no_reset() {
        let (mut sender, mut prompt) = pair();
        sender.write_all(b"everything").unwrap();
        assert_eq!(next(&mut prompt, true, 100), b"everything");
        drop(prompt);
        assert_eq!(Read::read(&mut sender, &mut [0; 10]).unwrap(), 0);
    }
}
