//! The two system calls of a byte stream, behind a trait so that tests can inject any behaviour.

use rustix::io::Errno;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The error of a read that found bytes which were changed on the way; no system call on a stream has it.
pub const ALTERED: Errno = Errno::BADMSG;

/// A range of bytes in memory. Raw, because a slot's bytes are shared with a kernel, a request's with its owner: no
/// Rust reference may cover them.
pub type Piece = libc::iovec;

/// A piece.
pub fn piece(start: *const u8, len: usize) -> Piece {
    Piece { iov_base: start.cast_mut().cast(), iov_len: len }
}

/// The length of these pieces together.
pub fn pieces_bytes(pieces: &[Piece]) -> usize {
    pieces.iter().map(|p| p.iov_len).sum()
}

/// A non-blocking byte stream. Both methods return the number of bytes moved, front to back; fewer than requested
/// means that more would have blocked. `AGAIN` means that even one would.
pub trait StreamIo {
    /// # Safety
    /// 1. The pieces are valid for reads, and nobody writes them meanwhile.
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno>;

    /// Zero means that the peer has closed its end.
    ///
    /// # Safety
    /// 1. The pieces are valid for writes, and nobody else accesses them meanwhile.
    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno>;

    /// Low-latency hint: a thread of its own polls this stream, so short reads may peek before they consume, which
    /// defers the ACK.
    fn be_prompt(&mut self) {}

    /// As [`Self::read`], for a message that is probably short and awaited.
    ///
    /// # Safety
    /// 1. As [`Self::read`].
    unsafe fn read_short(&mut self, room: Piece) -> Result<usize, Errno> {
        // SAFETY: obligation 1.
        unsafe { self.read(&mut [room]) }
    }

    /// Whether bytes may be read that poll(2) does not announce: they have left the socket.
    fn has_unread(&self) -> bool {
        false
    }

    /// Whether bytes are on their way that no write has reported: the next write must begin with them.
    fn is_mid_write(&self) -> bool {
        false
    }

    /// The TCP stream below, where there is one that others may look at.
    fn socket(&self) -> Option<&Arc<TcpStream>> {
        None
    }
}

impl StreamIo for TcpStream {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        // SAFETY: obligation 1.
        unsafe { send(self, pieces) }
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        // SAFETY: obligation 1.
        unsafe { receive(self, pieces) }
    }
}

/// For the two directions of a stream that have owners of their own.
impl StreamIo for Arc<TcpStream> {
    fn socket(&self) -> Option<&Arc<TcpStream>> {
        Some(self)
    }

    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        // SAFETY: obligation 1.
        unsafe { send(self, pieces) }
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        // SAFETY: obligation 1.
        unsafe { receive(self, pieces) }
    }
}

/// # Safety
/// As [`StreamIo::write`].
unsafe fn send(stream: &TcpStream, pieces: &[Piece]) -> Result<usize, Errno> {
    let message = message(pieces.as_ptr().cast_mut(), pieces.len());
    // SAFETY: the descriptor is open, the message lives through the call, the pieces are readable (the caller's promise).
    let n = unsafe {
        // NOSIGNAL: a closed peer is an error code, not the death of the user's process.
        libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    result(n)
}

/// # Safety
/// As [`StreamIo::read`].
unsafe fn receive(stream: &TcpStream, pieces: &mut [Piece]) -> Result<usize, Errno> {
    let mut message = message(pieces.as_mut_ptr(), pieces.len());
    // SAFETY: the descriptor is open, the message lives through the call, the pieces are writable (the caller's promise).
    let n = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    result(n)
}

/// Copies from these pieces, behind their first `skip_bytes`, as much as there is room. Returns how much.
///
/// # Safety
/// As [`StreamIo::write`].
pub(super) unsafe fn copy_from(pieces: &[Piece], mut skip_bytes: usize, room: &mut [u8]) -> usize {
    let mut copied_bytes = 0;
    for piece in pieces {
        let skipped_bytes = skip_bytes.min(piece.iov_len);
        skip_bytes -= skipped_bytes;
        let len_bytes = (piece.iov_len - skipped_bytes).min(room.len() - copied_bytes);
        if len_bytes > 0 {
            let from = piece.iov_base.cast::<u8>().wrapping_add(skipped_bytes);
            let to = room[copied_bytes..][..len_bytes].as_mut_ptr();
            // SAFETY: within the piece, which the caller lets us read, and within the room, which is ours.
            unsafe { to.copy_from_nonoverlapping(from, len_bytes) };
            copied_bytes += len_bytes;
        }
    }
    copied_bytes
}

/// A message header of these pieces and nothing else.
fn message(pieces: *mut Piece, count: usize) -> libc::msghdr {
    // SAFETY: a msghdr of zeroes is valid: no name, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    message
}

/// Result of a system call that moves bytes.
#[inline]
pub(super) fn result(n: isize) -> Result<usize, Errno> {
    usize::try_from(n).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).expect("a failed system call leaves an errno")
    })
}
