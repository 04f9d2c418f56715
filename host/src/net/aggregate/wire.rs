//! A connection between a head and a server, as bytes: over TCP, in the clear or encrypted, or over messages of a network.

use super::messages::Messages;
use crate::bootstrap::channel::DataStream;
use crate::bootstrap::handshake::Purpose;
use crate::bootstrap::tcp_info::HostWatch;
use crate::net::io::{ALTERED, Piece, StreamIo, piece};
use crate::net::seal::{SealedReader, SealedWriter};
use core::ptr::null;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the last message of a connection may take to leave.
const LEFT_WITHIN: Duration = Duration::from_millis(50);

/// What a head says in the handshake of how its bytes travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// Over the connection of the handshake, in the clear.
    Clear,
    /// The same, encrypted.
    Sealed,
    /// As messages of a network, which the two agree on over the connection, encrypted.
    Network,
}

impl Carrier {
    const ALL: [Carrier; 3] = [Carrier::Clear, Carrier::Sealed, Carrier::Network];

    /// In the handshake.
    pub fn purpose(self) -> Purpose {
        Purpose::Stream(match self {
            Carrier::Clear => 0x4f78_4167,
            Carrier::Sealed => 0x4f78_4173,
            Carrier::Network => 0x4f78_416e,
        })
    }

    /// What a head that said this does.
    pub fn of(purpose: Purpose) -> Option<Carrier> {
        Carrier::ALL.into_iter().find(|carrier| carrier.purpose() == purpose)
    }
}

/// The connection. Nothing blocks.
pub struct Wire {
    /// Closed by an end that leaves, whatever carries the bytes.
    socket: Arc<TcpStream>,
    bytes: Bytes,
    watch: HostWatch,
}

/// Both directions, encrypted.
type Sealed = (SealedWriter<Arc<TcpStream>>, SealedReader<Arc<TcpStream>>);

enum Bytes {
    Clear(Arc<TcpStream>),
    Sealed(Box<Sealed>),
    Messages(Box<Messages>),
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({:?})", self.socket)
    }
}

impl Wire {
    /// Over a stream on which nothing has travelled since its handshake, to a host that counts as gone after a silence of so long.
    pub fn new(DataStream { socket, keys }: DataStream, carrier: Carrier, dead_after: Duration) -> Wire {
        let socket = Arc::new(socket);
        let bytes = match carrier {
            Carrier::Clear => Bytes::Clear(socket.clone()),
            Carrier::Sealed | Carrier::Network => Bytes::Sealed(Box::new((
                SealedWriter::new(socket.clone(), keys.sends),
                SealedReader::new(socket.clone(), keys.receives),
            ))),
        };
        Wire { socket, bytes, watch: HostWatch::new(dead_after) }
    }

    /// From now on bytes travel so. What has come of others is forgotten.
    pub fn go_on_by(&mut self, messages: Messages) {
        self.bytes = Bytes::Messages(Box::new(messages));
    }

    /// What poll(2) waits for; closed when the other end leaves.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Most bytes of the connection's own buffers.
    pub fn buffers_bytes(&self) -> u64 {
        match &self.bytes {
            Bytes::Clear(_) => 0,
            Bytes::Sealed(_) => 3 * (64 << 10),
            Bytes::Messages(_) => Messages::BUFFERS_BYTES,
        }
    }

    /// Whether bytes come and go that poll(2) does not announce, at any time.
    pub fn is_polled(&self) -> bool {
        matches!(self.bytes, Bytes::Messages(_))
    }

    /// Grows with what a connection that [is polled](Self::is_polled) moves.
    pub fn moved(&self) -> u64 {
        match &self.bytes {
            Bytes::Messages(messages) => messages.moved(),
            _ => 0,
        }
    }

    /// Whether there is something to read that poll(2) does not announce.
    pub fn has_unread(&self) -> bool {
        match &self.bytes {
            Bytes::Clear(_) => false,
            Bytes::Sealed(ends) => ends.1.has_unread(),
            Bytes::Messages(messages) => messages.has_unread(),
        }
    }

    /// Whether a write has begun that must be repeated before any other.
    pub fn is_mid_write(&self) -> bool {
        matches!(&self.bytes, Bytes::Sealed(ends) if ends.0.is_mid_write())
    }

    /// Whether the other host is there. Call it at intervals.
    ///
    /// # Errors
    /// `TimedOut`: it has answered nothing for too long.
    pub fn check_host(&mut self) -> io::Result<()> {
        self.watch.look(&self.socket)
    }

    /// Moves what goes without a read or a write.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn progress(&mut self) -> io::Result<()> {
        match &mut self.bytes {
            Bytes::Messages(messages) => messages.progress(),
            _ => Ok(()),
        }
    }

    /// Writes the beginning of these pieces; `None` if nothing goes now. What has been refused or cut off comes again in the next write.
    ///
    /// # Errors
    /// The connection is broken.
    ///
    /// # Safety
    /// 1. The pieces are valid for reads, and nobody writes them meanwhile.
    pub unsafe fn write(&mut self, pieces: &[Piece]) -> io::Result<Option<usize>> {
        if let Bytes::Messages(messages) = &mut self.bytes {
            // SAFETY: obligation 1.
            return unsafe { messages.write(pieces) };
        }
        repeated(|| match &mut self.bytes {
            // SAFETY: obligation 1.
            Bytes::Clear(stream) => unsafe { stream.write(pieces) },
            // SAFETY: obligation 1.
            Bytes::Sealed(ends) => unsafe { ends.0.write(pieces) },
            Bytes::Messages(_) => Err(Errno::BADF),
        })
    }

    /// Reads what has come into these rooms, one after the other; `None` if nothing has, `Some(0)` at the end. Where more may have come all the same
    /// poll(2) says so, or [`Self::has_unread`].
    ///
    /// # Errors
    /// The connection is broken. `InvalidData`: bytes were changed on the way.
    ///
    /// # Safety
    /// 1. The rooms are valid for writes, and nobody else accesses them meanwhile.
    pub unsafe fn read(&mut self, mut rooms: [Piece; 2]) -> io::Result<Option<usize>> {
        if let Bytes::Messages(messages) = &mut self.bytes {
            // SAFETY: obligation 1.
            return unsafe { messages.read(rooms[0], &self.socket) };
        }
        repeated(|| match &mut self.bytes {
            // SAFETY: obligation 1.
            Bytes::Clear(stream) => unsafe { stream.read(&mut rooms) },
            // SAFETY: obligation 1.
            Bytes::Sealed(ends) => unsafe { ends.1.read(&mut rooms) },
            Bytes::Messages(_) => Err(Errno::BADF),
        })
    }

    /// As [`Self::write`].
    ///
    /// # Errors
    /// Likewise.
    pub fn write_some(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        // SAFETY: the bytes are borrowed, so readable and unchanged, through the call.
        unsafe { self.write(&[piece(bytes.as_ptr(), bytes.len())]) }
    }

    /// Writes a text on a connection that is dropped then. One that takes nothing now closes without it.
    pub fn say_last(&mut self, bytes: &[u8]) {
        let _ = self.write_some(bytes);
        let by = Instant::now() + LEFT_WITHIN;
        while let Bytes::Messages(messages) = &mut self.bytes
            && messages.progress().is_ok()
            && !messages.has_left()
            && Instant::now() < by
        {
            std::thread::yield_now();
        }
    }

    /// As [`Self::read`].
    ///
    /// # Errors
    /// Likewise.
    pub fn read_some(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: the room is borrowed through the call.
        unsafe { self.read([piece(room.as_mut_ptr(), room.len()), piece(null(), 0)]) }
    }

    /// Says that nothing more is sent, or read either; the other end sees it.
    ///
    /// # Errors
    /// The connection has gone.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }
}

/// What a call moved, once no signal interrupts it.
fn repeated(mut call: impl FnMut() -> Result<usize, Errno>) -> io::Result<Option<usize>> {
    loop {
        return match call() {
            Ok(moved) => Ok(Some(moved)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(ALTERED) => Err(io::Error::new(io::ErrorKind::InvalidData, "bytes were changed on the way")),
            Err(errno) => Err(errno.into()),
        };
    }
}
