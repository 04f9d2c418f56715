//! Layer: host / bootstrap.
//! Takes: a stream that has passed the handshake, and its keys.
//! Gives: [`Channel`]: reading and writing with all bytes sealed.
//! Never: lets a byte out in the clear, or in unopened, unless its owner takes the stream from it.

use std::io;
use std::net::{SocketAddr, TcpStream};

use rustix::event::PollFlags;

use super::frame::{Decoder, Frame};
use super::handshake::{Handshake, HandshakeError};
use super::session::{DataKeys, Session};
use super::sock::{self, Deadline};

/// Most bytes of one read.
const READ_MAX: usize = 64 << 10;

/// Why a connection is unusable.
#[derive(Debug)]
pub(crate) enum DialError {
    Io(io::Error),
    Handshake(HandshakeError),
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        DialError::Io(error)
    }
}

/// An authenticated connection whose bytes are encrypted.
#[derive(Debug)]
pub(crate) struct Channel {
    pub stream: TcpStream,
    session: Session,
}

/// An authenticated connection for bytes of its owner's, and keys to encrypt them by.
#[derive(Debug)]
pub struct DataStream {
    /// The connection, on which nothing has travelled since the handshake.
    pub socket: TcpStream,
    /// Its keys.
    pub keys: DataKeys,
}

impl Channel {
    /// The connection of a handshake that has come to a good end.
    pub fn new(stream: TcpStream, handshake: &mut Handshake) -> io::Result<Channel> {
        let session = handshake.take_session().ok_or(io::ErrorKind::PermissionDenied)?;
        Ok(Channel { stream, session })
    }

    /// Connects and authenticates; nothing but the handshake has been sent or read afterwards.
    pub fn dial(
        addr: SocketAddr,
        handshake: &mut Handshake,
        deadline: &Deadline,
    ) -> Result<Channel, DialError> {
        let stream = sock::connect(addr, deadline)?;
        loop {
            match sock::advance(&stream, handshake)? {
                Some(Ok(_)) => return Ok(Channel::new(stream, handshake)?),
                Some(Err(error)) => return Err(DialError::Handshake(error)),
                None => {
                    let flags = if handshake.output().is_empty() { PollFlags::IN } else { PollFlags::OUT };
                    sock::wait(&stream, flags, deadline)?;
                }
            }
        }
    }

    /// The bare stream: what goes through it from now on is as clear as its owner leaves it. With keys to encrypt that by.
    pub fn into_stream(self) -> DataStream {
        DataStream { keys: self.session.data_keys(), socket: self.stream }
    }

    /// Appends `plain` to `out`, sealed: to be written to the stream, in this order.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        self.session.seal(plain, out);
    }

    /// Reads what is there, by way of `buffer`, and opens it: `Some` with nothing where a record is not complete, `None` at the end of
    /// the stream.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is there. `InvalidData`: bytes that were changed on the way. The socket's own.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<Vec<u8>>> {
        match sock::read_some(&self.stream, buffer)? {
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(0) => Ok(None),
            Some(got) => self.open(&buffer[..got]).map(Some),
        }
    }

    fn open(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let opened = self.session.feed(bytes);
        opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(self.session.take_opened())
    }

    /// Writes everything, sealed, within the deadline.
    pub fn write_all(&mut self, plain: &[u8], deadline: &Deadline) -> io::Result<()> {
        let mut sealed = Vec::new();
        self.seal(plain, &mut sealed);
        sock::write_all(&self.stream, &sealed, deadline)
    }

    /// Reads one frame within the deadline, the last that is read of this connection.
    pub fn read_frame(&mut self, payload_max: usize, deadline: &Deadline) -> io::Result<Frame> {
        let mut decoder = Decoder::new(payload_max);
        let mut buffer = vec![0; READ_MAX];
        loop {
            let opened = match self.read(&mut buffer) {
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Some(opened)) => opened,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sock::wait(&self.stream, PollFlags::IN, deadline)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match decoder.feed(&mut opened.as_slice()) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}
