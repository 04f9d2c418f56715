//! Events: points in a stream, for ordering and timing.

use super::capture::RelaxedCapture;
use super::device::Device;
use crate::gpu::{CudaError, code};
use cudarc::driver::sys::CUevent;

/// `CU_EVENT_DISABLE_TIMING`: cheaper where only the order matters.
const NO_TIMING: u32 = 2;

/// A point in a stream, destroyed on drop.
#[derive(Debug)]
pub struct Event {
    device: Device,
    raw: CUevent,
}

// SAFETY: an event is a handle that every thread may use.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event for ordering only.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn new(device: &Device) -> Result<Event, CudaError> {
        Self::with_flags(device, NO_TIMING)
    }

    /// Creates an event for timing too.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn timed(device: &Device) -> Result<Event, CudaError> {
        Self::with_flags(device, 0)
    }

    fn with_flags(device: &Device, flags: u32) -> Result<Event, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for a write; a context is current.
        let code = unsafe { (device.api().cuEventCreate)(&mut raw, flags) };
        device.check("cuEventCreate", code)?;
        Ok(Event { device: device.clone(), raw })
    }

    /// The device whose streams it is of.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The handle.
    pub fn raw(&self) -> CUevent {
        self.raw
    }

    /// Whether the stream has reached it; true for an event that was never recorded. Works while this thread captures
    /// a graph that does not contain the event.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel broke the context, [`CudaError::Call`].
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: the event lives.
        match unsafe { (self.device.api().cuEventQuery)(self.raw) } {
            code::NOT_READY => Ok(false),
            code => self.device.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits until the stream has reached it.
    ///
    /// # Errors
    /// As for [`Self::is_done`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: the event lives.
        let code = unsafe { (self.device.api().cuEventSynchronize)(self.raw) };
        self.device.check("cuEventSynchronize", code)
    }

    /// Microseconds from `start` to this event, both timed and complete; the device's clock has a resolution of about
    /// half a microsecond.
    ///
    /// # Errors
    /// [`CudaError::Call`] if one is not timed, was never recorded or is not complete.
    pub fn elapsed_us(&self, start: &Event) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events live; `milliseconds` is valid for a write.
        let code = unsafe { (self.device.api().cuEventElapsedTime)(&mut milliseconds, start.raw, self.raw) };
        self.device.check("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `with_flags` and destroyed once; a stream that still waits for it has its own reference.
        let code = unsafe { (self.device.api().cuEventDestroy_v2)(self.raw) };
        self.device.released("cuEventDestroy", code);
    }
}
