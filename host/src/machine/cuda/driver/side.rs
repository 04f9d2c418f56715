//! A GPU's stream for what is done beside the caller's streams: filling tables, zeroing memory.
//!
//! Such work comes at first use of a connection, beside kernels of other communicators that may wait for this rank. Making a stream then
//! may wait for those kernels (`cuStreamCreate` alone of the driver's calls does, from some forty streams on: measured with driver 580,
//! docs/measurements/2026-11-25-conformance-one-h200.md). So communicators keep one for each GPU, made with the first of them.

use super::device::Device;
use super::stream::Stream;
use crate::gpu::CudaError;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// By ordinal.
static OF_DEVICES: LazyLock<Mutex<HashMap<u32, Weak<Stream>>>> = LazyLock::new(Mutex::default);

/// The stream of the device in this process, made now if nobody keeps one.
///
/// # Errors
/// [`CudaError::Call`].
pub fn side_stream(device: &Device) -> Result<Arc<Stream>, CudaError> {
    let mut of_devices = OF_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(side) = of_devices.get(&device.ordinal()).and_then(Weak::upgrade) {
        return Ok(side);
    }
    let side = Arc::new(Stream::new(device)?);
    of_devices.insert(device.ordinal(), Arc::downgrade(&side));
    Ok(side)
}
