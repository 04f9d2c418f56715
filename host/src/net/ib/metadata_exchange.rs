//! Writes and reads a fixed number of bytes over a non-blocking socket.

use crate::bootstrap::sock;
use std::io;
use std::net::TcpStream;

/// A write and a read in progress.
pub(super) struct MetadataExchange {
    pub stream: TcpStream,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    read: usize,
}

impl MetadataExchange {
    /// Writes `output` and reads exactly `input_bytes`.
    pub(super) fn new(stream: TcpStream, output: &[u8], input_bytes: usize) -> MetadataExchange {
        MetadataExchange { stream, output: output.to_vec(), written: 0, input: vec![0; input_bytes], read: 0 }
    }

    /// Makes progress. Returns the bytes read once everything is written and read.
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
