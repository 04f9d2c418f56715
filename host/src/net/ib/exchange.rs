//! A few bytes out and a few bytes in over a socket that does not block.

use crate::bootstrap::sock;
use std::io;
use std::net::TcpStream;

/// What is left to be written and read.
pub(super) struct Exchange {
    pub stream: TcpStream,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    read: usize,
}

impl Exchange {
    /// Writes `output` and reads `input_bytes`, not one more.
    pub(super) fn new(stream: TcpStream, output: &[u8], input_bytes: usize) -> Exchange {
        Exchange { stream, output: output.to_vec(), written: 0, input: vec![0; input_bytes], read: 0 }
    }

    /// What was read, once all is written and read.
    pub(super) fn advance(&mut self) -> io::Result<Option<&[u8]>> {
        while self.written < self.output.len() {
            match sock::write_some(&self.stream, &self.output[self.written..])? {
                Some(count) => self.written += count,
                None => return Ok(None),
            }
        }
        while self.read < self.input.len() {
            match sock::read_some(&self.stream, &mut self.input[self.read..])? {
                Some(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer gave up")),
                Some(count) => self.read += count,
                None => return Ok(None),
            }
        }
        Ok(Some(&self.input))
    }
}
