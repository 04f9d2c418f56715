//! A second stream, for long copies within the GPU beside what the user's stream does.

use super::driver::{CudaError, Device, Event, Stream, StreamRef};

/// A copy of so many bytes is worth two events.
pub(super) const BESIDE_MIN_BYTES: u64 = 1 << 20;

/// The stream, and the events that order it.
pub(super) struct Beside {
    stream: Stream,
    forked: Event,
    joined: Event,
}

impl Beside {
    pub fn new(device: &Device) -> Result<Beside, CudaError> {
        Ok(Beside { stream: Stream::new(device)?, forked: Event::new(device)?, joined: Event::new(device)? })
    }

    /// What is [put](Self::stream) beside begins when `stream` has come to here.
    pub fn fork(&self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        stream.record(&self.forked)
    }

    /// Where to put it. What was enqueued since the fork, a kernel that wants its multiprocessors at once, is in front of it.
    pub fn stream(&self) -> Result<StreamRef<'_>, CudaError> {
        let stream = self.stream.by_ref();
        stream.wait(&self.forked)?;
        Ok(stream)
    }

    /// Later work on `stream` waits for it.
    pub fn join(&self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        self.stream.by_ref().record(&self.joined)?;
        stream.wait(&self.joined)
    }
}
