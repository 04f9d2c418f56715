//! One operation after the other, whichever streams they are put on.

use crate::cuda::{CudaError, Device, Event, StreamRef};

/// The operations of a communicator use the same connections, so each waits for the one before. Within a stream that comes by
/// itself; where the stream changes, an event that follows every operation is waited for.
///
/// What is captured into graphs is ordered within its capture only: whoever launches the graph orders it.
#[derive(Debug)]
pub(super) struct Order {
    device: Device,
    /// Recorded behind the latest operation that ran on a stream.
    done: Event,
    /// For streams that join, and for captures.
    joined: Event,
    /// The stream that `done` is on.
    on: Option<usize>,
    /// Whether the operation being put on a stream becomes part of a graph.
    captured: bool,
}

impl Order {
    pub fn new(device: &Device) -> Result<Order, CudaError> {
        Ok(Order {
            device: device.clone(),
            done: Event::new(device)?,
            joined: Event::new(device)?,
            on: None,
            captured: false,
        })
    }

    /// What comes now on `stream` waits for the operations before, and for what is on `others`.
    pub fn enter<'s>(
        &mut self,
        stream: StreamRef<'s>,
        others: impl Iterator<Item = StreamRef<'s>>,
    ) -> Result<(), CudaError> {
        self.captured = stream.is_capturing()?;
        if !self.captured && self.on.is_some_and(|on| on != stream.raw().addr()) {
            stream.wait(&self.done)?;
        }
        for other in others {
            other.record(&self.joined)?;
            stream.wait(&self.joined)?;
        }
        Ok(())
    }

    /// The operation has been put on `stream`; what comes now on `others` waits for it.
    pub fn leave<'s>(
        &mut self,
        stream: StreamRef<'s>,
        others: impl Iterator<Item = StreamRef<'s>>,
    ) -> Result<(), CudaError> {
        // An event that was recorded within a capture is good for nothing else.
        let done = if self.captured { &self.joined } else { &self.done };
        let mut others = others.peekable();
        if !self.captured || others.peek().is_some() {
            stream.record(done)?;
        }
        others.try_for_each(|other| other.wait(done))?;
        if !self.captured {
            self.on = Some(stream.raw().addr());
        }
        Ok(())
    }

    /// Whether all operations are done that were not captured.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _bound = self.device.bind()?;
        self.done.is_done()
    }
}
