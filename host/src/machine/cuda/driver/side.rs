//! A GPU's stream for what is done beside the caller's streams: filling tables, zeroing memory.
//!
//! Such work comes at first use of a connection, beside kernels of other communicators that may wait for this rank. Making a stream then
//! may wait for those kernels (`cuStreamCreate` alone of the driver's calls does, from some forty streams on: measured with driver 580,
//! docs/measurements/2026-11-25-conformance-one-h200.md). So there is one for each GPU, made with its first communicator.

use super::api::Api;
use super::stream::NON_BLOCKING;
use crate::gpu::{CudaError, DeviceId};
use cudarc::driver::sys::CUstream;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// The stream, for all of this process that has the device open.
pub(super) struct SideStream {
    api: &'static Api,
    pub raw: CUstream,
}

// SAFETY: a stream is a handle that every thread may use.
unsafe impl Send for SideStream {}
// SAFETY: as above.
unsafe impl Sync for SideStream {}

/// By ordinal.
static OF_DEVICES: LazyLock<Mutex<HashMap<u32, Weak<SideStream>>>> = LazyLock::new(Mutex::default);

impl SideStream {
    /// That of the device, made now if nobody has it.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. The device's primary context is current on this thread, and whoever has the value retains that context.
    pub unsafe fn of(api: &'static Api, id: DeviceId) -> Result<Arc<SideStream>, CudaError> {
        let mut of_devices = OF_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(side) = of_devices.get(&id.ordinal).and_then(Weak::upgrade) {
            return Ok(side);
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for a write; a context is current (1).
        let code = unsafe { (api.cuStreamCreate)(&mut raw, NON_BLOCKING) };
        api.check(id, "cuStreamCreate", code)?;
        let side = Arc::new(SideStream { api, raw });
        of_devices.insert(id.ordinal, Arc::downgrade(&side));
        Ok(side)
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        // SAFETY: made by `of` and destroyed once; what is enqueued has been waited for. At exit the driver may be gone, which it says.
        unsafe { (self.api.cuStreamDestroy_v2)(self.raw) };
    }
}
