//! Memory of a device, for this process alone.

use super::capture::RelaxedCapture;
use super::device::Device;
use super::side::side_stream;
use crate::gpu::{CudaError, MemoryKind};
use cudarc::driver::sys::CUdeviceptr;

/// Device memory, freed on drop. It provides an address only; the layers that place data in it define who accesses
/// what, and when.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Device,
    address: CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// Allocates `len` zeroed bytes, 256-byte aligned. Works while this thread captures a graph.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Call`] (also for zero bytes).
    pub fn zeroed(device: &Device, len: usize) -> Result<DeviceMemory, CudaError> {
        let memory = Self::uninitialised(device, len)?;
        zero(device, memory.address, len)?;
        Ok(memory)
    }

    /// Allocates `len` uninitialised bytes, 256-byte aligned.
    ///
    /// # Errors
    /// As for [`Self::zeroed`].
    pub fn uninitialised(device: &Device, len: usize) -> Result<DeviceMemory, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let mut address = 0;
        // SAFETY: `address` is valid for a write; a context is current.
        let code = unsafe { (device.api().cuMemAlloc_v2)(&mut address, len) };
        device.check_memory("cuMemAlloc", MemoryKind::Device, len, code)?;
        Ok(DeviceMemory { device: device.clone(), address, len })
    }

    /// Its first byte, for kernels.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "the driver makes no empty memory")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: allocated by this value alone, and users of its address promised not to outlive it.
        let code = unsafe { (self.device.api().cuMemFree_v2)(self.address) };
        self.device.released("cuMemFree", code);
    }
}

/// Zeroes fresh memory and waits for that, on a stream beside the user's: on the default stream it would wait for every one of them, and
/// would break a capture.
pub(super) fn zero(device: &Device, address: CUdeviceptr, len: usize) -> Result<(), CudaError> {
    let _relaxed = RelaxedCapture::enter(device.driver());
    let stream = side_stream(device)?;
    // SAFETY: (1) the caller has just allocated `len` bytes there, which are not shared yet.
    unsafe { stream.by_ref().fill(address, 0, len) }?;
    stream.synchronize()
}
