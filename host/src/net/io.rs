//! The two system calls of a stream of bytes, behind a trait so that tests can be worse than any network.

use rustix::io::Errno;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// A run of bytes in memory. Raw, because the bytes of a slot are shared with a kernel, those of a request with its owner: no Rust reference may cover them.
pub type Piece = libc::iovec;

/// A piece.
pub fn piece(start: *const u8, len: usize) -> Piece {
    Piece { iov_base: start.cast_mut().cast(), iov_len: len }
}

/// The length of these pieces together.
pub fn pieces_bytes(pieces: &[Piece]) -> usize {
    pieces.iter().map(|p| p.iov_len).sum()
}

/// A stream of bytes that never blocks. Both methods return how many bytes they moved, front to back; fewer than asked
/// means that more would have had to wait. `AGAIN` means that even one would.
pub trait StreamIo {
    /// # Safety
    /// 1. The pieces are valid for reads, and nobody writes them meanwhile.
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno>;

    /// Zero means that the peer has closed its end.
    ///
    /// # Safety
    /// 1. The pieces are valid for writes, and nobody else accesses them meanwhile.
    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno>;

    /// Whoever reads has a thread for it: what the system does when bytes are taken may be put off until they have been seen.
    fn be_prompt(&mut self) {}

    /// As [`Self::read`], of what is probably a short message that somebody waits for.
    ///
    /// # Safety
    /// 1. As [`Self::read`].
    unsafe fn read_short(&mut self, room: Piece) -> Result<usize, Errno> {
        // SAFETY: obligation 1.
        unsafe { self.read(&mut [room]) }
    }
}

impl StreamIo for TcpStream {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        let message = message(pieces.as_ptr().cast_mut(), pieces.len());
        // SAFETY: the descriptor is open, the message lives through the call, the pieces are readable (obligation 1).
        let n = unsafe {
            // NOSIGNAL: a peer that went away is an error code, not the death of the user's process.
            libc::sendmsg(self.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        };
        result(n)
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        let mut message = message(pieces.as_mut_ptr(), pieces.len());
        // SAFETY: the descriptor is open, the message lives through the call, the pieces are writable (obligation 1).
        let n = unsafe { libc::recvmsg(self.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        result(n)
    }
}

/// A message of these pieces and nothing else.
fn message(pieces: *mut Piece, count: usize) -> libc::msghdr {
    // SAFETY: a msghdr of zeroes is valid: no name, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    message
}

/// What a system call that moves bytes said.
pub(super) fn result(n: isize) -> Result<usize, Errno> {
    usize::try_from(n).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).expect("a failed system call leaves an errno")
    })
}
