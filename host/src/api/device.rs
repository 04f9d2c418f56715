//! What communicators on streams have beside the operations.

use super::communicator::Comm;
use super::error::{ArgumentError, Error};
use super::init::Init;
use super::operations::Untyped;
use crate::launch::{RawCall, RunError, StreamMachine};

impl<M: Init<Unit = u32> + StreamMachine> Comm<M> {
    /// This rank's GPU.
    pub fn device(&self) -> &M::Device {
        &self.device
    }

    /// Synchronises the stream, and returns the error if an operation on it failed.
    ///
    /// # Errors
    /// [`Error::Operation`], [`Error::Device`].
    pub fn synchronize(&self, stream: M::Stream<'_>) -> Result<(), Error> {
        let done = M::synchronize(stream).map_err(|error| self.stopped_by(error.into()));
        done.map_err(|error| self.error(error))?;
        self.async_error().map_or(Ok(()), Err)
    }

    /// Checks a call's arguments.
    pub(super) fn check(&self, call: &Untyped, stream: M::Stream<'_>) -> Result<RawCall, ArgumentError> {
        let raw = call.check(self.member.rank, self.size())?;
        let (device, of_stream) = (self.unit(), M::ordinal_of(stream));
        if device != of_stream {
            return Err(ArgumentError::StreamDevice { rank: self.member.rank, device, stream: of_stream });
        }
        for (which, address) in [("send", call.send.addr()), ("receive", call.recv.addr())] {
            if !address.is_multiple_of(call.dtype.size_bytes()) {
                let (func, dtype, address) = (call.func, call.dtype, address as u64);
                return Err(ArgumentError::Unaligned { func, which, address, dtype });
            }
        }
        Ok(raw)
    }

    fn stopped_by(&self, error: RunError) -> RunError {
        match self.engine() {
            Ok(engine) => engine.machine().stopped_by(error),
            Err(_) => error,
        }
    }
}
