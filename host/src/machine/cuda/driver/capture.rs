//! The capture mode of a thread.

use super::library::Driver;
use std::marker::PhantomData;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(super) const RELAXED: u32 = 2;

/// While it lives, this thread may make calls that stream capture forbids (allocate, load modules), as long as they
/// concern no capturing stream. A user may capture in the strictest mode when a communicator is first used.
pub struct RelaxedCapture {
    driver: &'static Driver,
    former: u32,
    /// The mode belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

impl RelaxedCapture {
    /// Relaxes this thread's mode until the value is dropped.
    pub fn enter(driver: &'static Driver) -> RelaxedCapture {
        let mut mode = RELAXED;
        // SAFETY: `mode` is valid for a read and a write. It fails for unknown modes only.
        let code = unsafe { (driver.api.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        debug_assert_eq!(code, 0);
        RelaxedCapture { driver, former: mode, _not_send: PhantomData }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        let mut mode = self.former;
        // SAFETY: as in `enter`.
        unsafe { (self.driver.api.cuThreadExchangeStreamCaptureMode)(&mut mode) };
    }
}
