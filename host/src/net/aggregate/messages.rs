//! A stream of bytes made of a network's messages, both ways, through a few registered buffers.
//!
//! A network moves messages between registered memory and has no notion of a stream. Whoever writes fills a buffer and sends it; receives
//! are always posted for all buffers that are not being read. The bytes are copied once at each end: operations come and go too fast to register
//! each one's memory, and a server combines out of its own.

use crate::net::io::{Piece, copy_from, pieces_bytes};
use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, RecvComm, Registration, Request, SendComm};
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Buffers in each direction: enough that the network always has one while another is filled.
const BUFFERS: usize = 8;
/// The longest message.
const MESSAGE_BYTES: usize = 64 << 10;
/// The other end's socket closes beside the network: messages that it sent before may come so much later.
const LATE: Duration = Duration::from_millis(200);
/// So many reads that find nothing before the socket is asked whether the other end has left.
const ASK_AFTER: u32 = 64;

/// Memory of messages.
struct Buffers {
    bytes: Box<[u8]>,
    registration: Registration,
    /// Of buffers that the network has; at index `number % BUFFERS`.
    requests: [Request; BUFFERS],
    /// Of buffers that are full.
    lens: [usize; BUFFERS],
}

/// The stream.
pub struct Messages {
    // Before the memory that they use, so that they end before it.
    sends: Box<dyn SendComm>,
    receives: Box<dyn RecvComm>,
    outgoing: Buffers,
    /// Messages that are filled, that the network has, that have left.
    filled: u64,
    started: u64,
    left: u64,
    incoming: Buffers,
    /// Receives that are posted, that are full, that have been read; bytes of the next one that have been read.
    posted: u64,
    come: u64,
    taken: u64,
    at: usize,
    fruitless: u32,
    /// When the other end's socket was found closed.
    closed_at: Option<Instant>,
}

impl Buffers {
    /// # Safety
    /// The communicator is dropped before them.
    unsafe fn registered<C: Comm + ?Sized>(comm: &mut C) -> Result<Buffers, NetError> {
        let mut bytes = vec![0; BUFFERS * MESSAGE_BYTES].into_boxed_slice();
        let memory =
            NetMemory { start: bytes.as_mut_ptr().cast(), len_bytes: bytes.len(), kind: NetMemoryKind::Host };
        // SAFETY: the memory stays until these buffers are dropped, which the communicator does not outlive.
        let registration = unsafe { comm.register(memory) }?;
        Ok(Buffers { bytes, registration, requests: [Request(0); BUFFERS], lens: [0; BUFFERS] })
    }

    /// One of them.
    fn buffer(&mut self, number: u64) -> &mut [u8] {
        &mut self.bytes[index(number) * MESSAGE_BYTES..][..MESSAGE_BYTES]
    }
}

fn index(number: u64) -> usize {
    (number % BUFFERS as u64) as usize
}

/// The end of a connection is an end of the stream; other errors keep their text.
fn broken(error: NetError) -> io::Error {
    match error {
        NetError::Closed { .. } => io::ErrorKind::BrokenPipe.into(),
        error => io::Error::other(error),
    }
}

impl Messages {
    /// Bytes of all buffers.
    pub const BUFFERS_BYTES: u64 = 2 * (BUFFERS * MESSAGE_BYTES) as u64;

    /// Over these two connections, on which nothing has been sent.
    ///
    /// # Errors
    /// The network does not take the memory.
    pub fn new(mut sends: Box<dyn SendComm>, mut receives: Box<dyn RecvComm>) -> Result<Messages, NetError> {
        // SAFETY: fields are dropped in their order: communicators first.
        let outgoing = unsafe { Buffers::registered(&mut *sends) }?;
        // SAFETY: likewise.
        let incoming = unsafe { Buffers::registered(&mut *receives) }?;
        Ok(Messages {
            sends,
            receives,
            outgoing,
            filled: 0,
            started: 0,
            left: 0,
            incoming,
            posted: 0,
            come: 0,
            taken: 0,
            at: 0,
            fruitless: 0,
            closed_at: None,
        })
    }

    /// Whether a message has come that is not read.
    pub fn has_unread(&self) -> bool {
        self.taken < self.come
    }

    /// Grows whenever a message begins, ends or is read.
    pub fn moved(&self) -> u64 {
        [self.filled, self.started, self.left, self.posted, self.come, self.taken].iter().sum()
    }

    /// Whether all that was written has left.
    pub fn has_left(&self) -> bool {
        self.left == self.filled
    }

    /// Moves what goes.
    ///
    /// # Errors
    /// The network's.
    pub fn progress(&mut self) -> io::Result<()> {
        self.progress_sends().and_then(|()| self.progress_receives()).map_err(broken)
    }

    fn progress_sends(&mut self) -> Result<(), NetError> {
        while self.started < self.filled {
            let len_bytes = self.outgoing.lens[index(self.started)];
            let (start, registration) =
                (self.outgoing.buffer(self.started).as_ptr(), self.outgoing.registration);
            // SAFETY: a full buffer is not written until the network no longer needs it, and outlives the communicator.
            let Some(request) = (unsafe { self.sends.isend(start, len_bytes, registration) })? else { break };
            self.outgoing.requests[index(self.started)] = request;
            self.started += 1;
        }
        while self.left < self.started && self.sends.test(self.outgoing.requests[index(self.left)])?.is_some()
        {
            self.left += 1;
        }
        Ok(())
    }

    fn progress_receives(&mut self) -> Result<(), NetError> {
        while self.posted < self.taken + BUFFERS as u64 {
            let (start, registration) =
                (self.incoming.buffer(self.posted).as_mut_ptr(), self.incoming.registration);
            // SAFETY: a buffer whose message has been read is nobody's, and outlives the communicator.
            let posted = unsafe { self.receives.irecv(start, MESSAGE_BYTES, registration) }?;
            let Some(request) = posted else { break };
            self.incoming.requests[index(self.posted)] = request;
            self.posted += 1;
        }
        while self.come < self.posted {
            let Some(len_bytes) = self.receives.test(self.incoming.requests[index(self.come)])? else {
                break;
            };
            self.incoming.lens[index(self.come)] = len_bytes;
            self.come += 1;
        }
        Ok(())
    }

    /// As [`super::wire::Wire::write`].
    ///
    /// # Safety
    /// Likewise.
    pub unsafe fn write(&mut self, pieces: &[Piece]) -> io::Result<Option<usize>> {
        let wanted_bytes = pieces_bytes(pieces);
        let mut written_bytes = 0;
        self.progress_sends().map_err(broken)?;
        while written_bytes < wanted_bytes && self.filled < self.left + BUFFERS as u64 {
            let number = self.filled;
            // SAFETY: the caller's promise.
            let len_bytes = unsafe { copy_from(pieces, written_bytes, self.outgoing.buffer(number)) };
            self.outgoing.lens[index(number)] = len_bytes;
            self.filled += 1;
            written_bytes += len_bytes;
            self.progress_sends().map_err(broken)?;
        }
        Ok((written_bytes > 0 || wanted_bytes == 0).then_some(written_bytes))
    }

    /// As [`super::wire::Wire::read`]; the socket is the one beside it, which the other end closes when it leaves.
    ///
    /// # Safety
    /// Likewise.
    pub unsafe fn read(&mut self, room: Piece, socket: &TcpStream) -> io::Result<Option<usize>> {
        // What has come before an error is read before it.
        let progress = self.progress();
        let mut read_bytes = 0;
        while read_bytes < room.iov_len && self.has_unread() {
            let number = self.taken;
            let rest = self.incoming.lens[index(number)] - self.at;
            let len_bytes = rest.min(room.iov_len - read_bytes);
            let from = self.incoming.buffer(number)[self.at..][..len_bytes].as_ptr();
            let to = room.iov_base.cast::<u8>().wrapping_add(read_bytes);
            // SAFETY: within a message that has come, and within the room, which the caller lets us write.
            unsafe { to.copy_from_nonoverlapping(from, len_bytes) };
            read_bytes += len_bytes;
            self.at += len_bytes;
            if len_bytes == rest {
                (self.taken, self.at) = (self.taken + 1, 0);
            }
        }
        if read_bytes > 0 || room.iov_len == 0 {
            self.fruitless = 0;
            return Ok(Some(read_bytes));
        }
        progress?;
        self.ask(socket)
    }

    /// `Some(0)` once the other end has left and nothing more comes.
    fn ask(&mut self, socket: &TcpStream) -> io::Result<Option<usize>> {
        self.fruitless += 1;
        if self.closed_at.is_none() && self.fruitless >= ASK_AFTER {
            self.fruitless = 0;
            match socket.peek(&mut [0]) {
                Ok(0) => self.closed_at = Some(Instant::now()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.closed_at.filter(|at| at.elapsed() >= LATE).map(|_| 0))
    }
}
