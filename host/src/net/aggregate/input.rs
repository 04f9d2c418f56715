//! Frames that a head reads, and why it reads no more.

use super::frame::{HEADER_BYTES, Header, Kind, TEXT_MAX};
use super::wire::Wire;
use crate::bootstrap::sock;
use std::io;

/// A frame that comes in, except the data of results.
pub struct Input {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    text: [u8; TEXT_MAX],
    text_bytes: usize,
}

/// Why a connection is of no use any more.
pub enum Ended {
    /// The server said why.
    Told(String),
    /// The server has gone.
    Closed,
    /// It sent what was not due: what was, and what came.
    Wrong(String, String),
    /// A system call failed.
    Io(io::Error),
    /// What it sent was changed on the way.
    Altered,
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        match error.kind() {
            _ if sock::is_end(&error) => Ended::Closed,
            io::ErrorKind::InvalidData => Ended::Altered,
            _ => Ended::Io(error),
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Told(text) => f.write_str(text),
            Ended::Closed => f.write_str("it closed the connection"),
            Ended::Wrong(expected, found) => write!(f, "it sent {found} where {expected} was due"),
            Ended::Io(error) => f.write_str(&crate::os::describe(error)),
            Ended::Altered => f.write_str("what it sent was changed on the way"),
        }
    }
}

impl Input {
    /// Before the first frame.
    pub fn new() -> Input {
        Input { header: [0; HEADER_BYTES], header_bytes: 0, text: [0; TEXT_MAX], text_bytes: 0 }
    }

    /// The frame has been read.
    pub fn next(&mut self) {
        self.header_bytes = 0;
    }

    /// Where the header of the next frame may be read together with the end of the one before it. See [`Self::begin_next`].
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.header
    }

    /// The frame has been read, and so many bytes into the [room](Self::room) behind it.
    pub fn begin_next(&mut self, header_bytes: usize) {
        self.header_bytes = header_bytes;
    }

    /// The header of the frame that comes in, once it is whole. A failure is an error with its text.
    pub fn header(&mut self, wire: &mut Wire) -> Result<Option<Header>, Ended> {
        while self.header_bytes < HEADER_BYTES {
            match read(wire, &mut self.header[self.header_bytes..])? {
                None => return Ok(None),
                Some(got) => self.header_bytes += got,
            }
        }
        let header = Header::from_bytes(&self.header)
            .map_err(|bad| Ended::Wrong("a frame".to_owned(), bad.to_string()))?;
        if header.kind != Kind::Failed {
            return Ok(Some(header));
        }
        let len_bytes = header.len_bytes as usize;
        while self.text_bytes < len_bytes {
            match read(wire, &mut self.text[self.text_bytes..len_bytes])? {
                None => return Ok(None),
                Some(got) => self.text_bytes += got,
            }
        }
        Err(Ended::Told(String::from_utf8_lossy(&self.text[..len_bytes]).into_owned()))
    }
}

/// Some bytes; `None` if none have come.
pub fn read(wire: &mut Wire, room: &mut [u8]) -> Result<Option<usize>, Ended> {
    match wire.read_some(room)? {
        Some(0) => Err(Ended::Closed),
        got => Ok(got),
    }
}
