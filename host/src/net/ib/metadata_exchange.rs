//! Writes and reads a fixed number of bytes over a non-blocking, encrypted connection.

use crate::bootstrap::channel::Channel;
use crate::bootstrap::sock;
use std::io;

/// A write and a read in progress.
pub(super) struct MetadataExchange {
    pub channel: Channel,
    /// Sealed.
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    input_bytes: usize,
}

impl MetadataExchange {
    /// Writes `output` and reads exactly `input_bytes`.
    pub(super) fn new(mut channel: Channel, output: &[u8], input_bytes: usize) -> MetadataExchange {
        let mut sealed = Vec::new();
        channel.seal(output, &mut sealed);
        MetadataExchange { channel, output: sealed, written: 0, input: Vec::new(), input_bytes }
    }

    /// Makes progress. Returns the bytes read once everything is written and read.
    pub(super) fn advance(&mut self) -> io::Result<Option<&[u8]>> {
        while self.written < self.output.len() {
            match sock::write_some(&self.channel.stream, &self.output[self.written..])? {
                Some(count) => self.written += count,
                None => return Ok(None),
            }
        }
        while self.input.len() < self.input_bytes {
            match self.channel.read(&mut [0; 1024]) {
                Ok(Some(opened)) => self.input.extend_from_slice(&opened),
                Ok(None) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer gave up")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if self.input.len() > self.input_bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer said more than belongs here"));
        }
        Ok(Some(&self.input))
    }
}
