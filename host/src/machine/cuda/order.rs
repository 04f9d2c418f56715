//! One operation after the other, whichever streams they are put on.

use super::driver::{CaptureId, CudaError, Device, Event, StreamRef};

/// The operations of a communicator use the same connections, so each waits for the one before. Within a stream that comes by
/// itself; where the stream changes, an event that follows every operation is waited for.
///
/// What is captured into graphs is ordered within its capture only, by an event of the same kind: whoever launches the graph orders
/// it. Of captures that take turns on one thread, each is ordered since its latest turn began.
#[derive(Debug)]
pub(super) struct Order {
    device: Device,
    /// Recorded behind the latest operation that ran on a stream.
    done: Event,
    /// The same of those that were captured: an event that was recorded within a capture is good for nothing else.
    captured: Event,
    /// For streams that join.
    joined: Event,
    /// The stream that `done` is on.
    on: Option<usize>,
    /// The capture and the stream that `captured` is on.
    captured_on: Option<(CaptureId, usize)>,
    /// What the operation being put on a stream becomes part of, if that is a graph.
    capture: Option<CaptureId>,
}

impl Order {
    pub fn new(device: &Device) -> Result<Order, CudaError> {
        Ok(Order {
            device: device.clone(),
            done: Event::new(device)?,
            captured: Event::new(device)?,
            joined: Event::new(device)?,
            on: None,
            captured_on: None,
            capture: None,
        })
    }

    /// What comes now on `stream` waits for the operations before, and for what is on `others`.
    pub fn enter<'s>(
        &mut self,
        stream: StreamRef<'s>,
        others: impl Iterator<Item = StreamRef<'s>>,
    ) -> Result<(), CudaError> {
        for other in others {
            other.record(&self.joined)?;
            stream.wait(&self.joined)?;
        }
        // Asked now: if one of the others is being captured, so is this stream since it waits for that.
        self.capture = stream.capturing()?.map(|capturing| capturing.id());
        let on = stream.raw().addr();
        match (self.capture, self.captured_on) {
            (None, _) if self.on.is_some_and(|before| before != on) => stream.wait(&self.done)?,
            (Some(now), Some((then, before))) if now == then && before != on => {
                stream.wait(&self.captured)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The operation has been put on `stream`; what comes now on `others` waits for it.
    pub fn leave<'s>(
        &mut self,
        stream: StreamRef<'s>,
        mut others: impl Iterator<Item = StreamRef<'s>>,
    ) -> Result<(), CudaError> {
        let done = if self.capture.is_some() { &self.captured } else { &self.done };
        stream.record(done)?;
        others.try_for_each(|other| other.wait(done))?;
        match self.capture {
            Some(capture) => self.captured_on = Some((capture, stream.raw().addr())),
            None => self.on = Some(stream.raw().addr()),
        }
        Ok(())
    }

    /// The capture that the operation being put on a stream becomes part of, if it is captured.
    pub fn capture(&self) -> Option<CaptureId> {
        self.capture
    }

    /// Whether all operations are done that were not captured.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _bound = self.device.bind()?;
        self.done.is_done()
    }
}
