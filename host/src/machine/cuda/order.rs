//! Stream order of a communicator's operations: one after the other, on any streams.

use super::driver::{CaptureId, CudaError, Device, Event, StreamRef};
use std::sync::Arc;
use std::thread::ThreadId;

/// The operations of a communicator use the same connections, so each waits for the one before. Within a stream that
/// is implicit; where the stream changes, the new stream waits for an event that follows every operation.
///
/// Captured operations are ordered within their capture only, by an event of the same kind: the program orders graph
/// launches. If captures alternate on one thread, each is ordered since its latest turn began.
#[derive(Debug)]
pub(super) struct Order {
    device: Device,
    /// Recorded after the latest operation that ran on a stream.
    done: Arc<Event>,
    /// The same for captured operations: an event recorded within a capture is usable only there.
    captured: Event,
    /// For streams that join.
    joined: Event,
    /// The stream of `done`.
    on: Option<StreamKey>,
    /// The capture and the stream of `captured`.
    captured_on: Option<(CaptureId, StreamKey)>,
    /// The capture of the operation being enqueued, if it is captured.
    capture: Option<CaptureId>,
}

/// Which stream a handle stands for, while it lives.
pub(super) type StreamKey = (usize, Option<ThreadId>);

/// `CU_STREAM_PER_THREAD`: another stream on each thread.
const PER_THREAD: usize = 2;

pub(super) fn key(stream: StreamRef<'_>) -> StreamKey {
    let handle = stream.raw().addr();
    (handle, (handle == PER_THREAD).then(|| std::thread::current().id()))
}

impl Order {
    pub fn new(device: &Device) -> Result<Order, CudaError> {
        Ok(Order {
            device: device.clone(),
            done: Arc::new(Event::new(device)?),
            captured: Event::new(device)?,
            joined: Event::new(device)?,
            on: None,
            captured_on: None,
            capture: None,
        })
    }

    /// Makes later work on `stream` wait for the previous operations, and for `others`.
    pub fn enter<'s>(
        &mut self,
        stream: StreamRef<'s>,
        others: impl Iterator<Item = StreamRef<'s>>,
    ) -> Result<(), CudaError> {
        for other in others {
            other.record(&self.joined)?;
            stream.wait(&self.joined)?;
        }
        // Checked now: if one of the others is being captured, so is this stream since it waits for that.
        self.capture = stream.capturing()?.map(|capturing| capturing.id());
        let on = key(stream);
        match (self.capture, self.captured_on) {
            (None, _) if self.on.is_some_and(|before| before != on) => stream.wait(&self.done)?,
            (Some(now), Some((then, before))) if now == then && before != on => {
                stream.wait(&self.captured)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes later work on `others` wait for the operation enqueued on `stream`.
    pub fn leave<'s>(
        &mut self,
        stream: StreamRef<'s>,
        mut others: impl Iterator<Item = StreamRef<'s>>,
    ) -> Result<(), CudaError> {
        let done = if self.capture.is_some() { &self.captured } else { &*self.done };
        stream.record(done)?;
        others.try_for_each(|other| other.wait(done))?;
        match self.capture {
            Some(capture) => self.captured_on = Some((capture, key(stream))),
            None => self.on = Some(key(stream)),
        }
        Ok(())
    }

    /// The capture of the operation being enqueued, if it is captured.
    pub fn capture(&self) -> Option<CaptureId> {
        self.capture
    }

    /// Is done when all operations that were not captured are.
    pub fn done(&self) -> &Arc<Event> {
        &self.done
    }

    /// Whether all operations that were not captured are complete.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _bound = self.device.bind()?;
        self.done.is_done()
    }
}
