//! When calls ran on the GPU: an event before and one after what is enqueued together, where the program has asked for such times.

use super::driver::{CudaError, Device, Event, Stream, StreamRef};
use crate::launch::{RECORDS, Recorded};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The times of the latest calls of a communicator.
pub(super) struct CallTimes {
    device: Device,
    /// A moment that is known by both clocks, in nanoseconds since 1970.
    base: Event,
    base_ns: u64,
    ring: Mutex<Ring>,
}

/// As many places as the recorder has calls, used in turn.
struct Ring {
    places: Box<[Place]>,
    next: usize,
}

/// Calls that are enqueued together.
struct Place {
    begins: Event,
    ends: Event,
    /// Their places in the recorder; none while they are enqueued, or if they never were.
    calls: Range<u64>,
}

impl CallTimes {
    /// With all events that it needs.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(device: &Device, side: &Stream) -> Result<CallTimes, CudaError> {
        let base = Event::timed(device)?;
        side.by_ref().record(&base)?;
        base.synchronize()?;
        let base_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let place = |_| Ok(Place { begins: Event::timed(device)?, ends: Event::timed(device)?, calls: 0..0 });
        let places = (0..RECORDS).map(place).collect::<Result<_, CudaError>>()?;
        Ok(CallTimes { device: device.clone(), base, base_ns, ring: Mutex::new(Ring { places, next: 0 }) })
    }

    /// Calls are about to be enqueued on this stream, which is not being captured. Returns whether they will have times: calls run as well
    /// where the driver refuses an event.
    pub fn begin(&self, stream: StreamRef<'_>) -> bool {
        let mut ring = self.ring();
        let place = ring.present();
        place.calls = 0..0;
        stream.record(&place.begins).is_ok()
    }

    /// They are enqueued.
    pub fn end(&self, stream: StreamRef<'_>, calls: Range<u64>) {
        let mut ring = self.ring();
        let place = ring.present();
        if stream.record(&place.ends).is_ok() {
            place.calls = calls;
            ring.next += 1;
        }
    }

    /// Adds what is known to these calls, which stand in their order.
    pub fn add_to(&self, calls: &mut [Recorded]) {
        let Ok(_bound) = self.device.bind() else { return };
        let ring = self.ring();
        let (mut first, count) = (None, ring.places.len());
        // Oldest first: later ones are measured from it, since the driver's times are the coarser the longer they are.
        for place in (ring.next..ring.next + count).map(|at| &ring.places[at % count]) {
            let is_done = |event: &Event| event.is_done().unwrap_or(false);
            if place.calls.is_empty() || !is_done(&place.begins) {
                continue;
            }
            let (base, base_ns) = *first.get_or_insert((&self.base, self.base_ns));
            let Some(started_ns) = after(&place.begins, base).map(|time| base_ns + time) else { continue };
            if std::ptr::eq(base, &raw const self.base) {
                first = Some((&place.begins, started_ns));
            }
            let lasted = is_done(&place.ends).then(|| after(&place.ends, &place.begins)).flatten();
            let from = calls.partition_point(|call| call.index < place.calls.start);
            let to = calls.partition_point(|call| call.index < place.calls.end);
            for call in &mut calls[from..to] {
                call.started_ns = Some(started_ns);
                call.ended_ns = lasted.map(|lasted| started_ns + lasted);
            }
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn present(&mut self) -> &mut Place {
        let at = self.next % self.places.len();
        &mut self.places[at]
    }
}

/// Nanoseconds from one event to a later one, both done.
fn after(event: &Event, earlier: &Event) -> Option<u64> {
    event.elapsed_us(earlier).ok().map(|time_us| (time_us * 1e3).max(0.0) as u64)
}
