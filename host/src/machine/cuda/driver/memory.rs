//! Memory of a device, for this process alone.

use super::capture::RelaxedCapture;
use super::device::Device;
use super::stream::Stream;
use crate::gpu::{CudaError, MemoryKind};
use cudarc::driver::sys::CUdeviceptr;

/// Device memory, freed on drop. Like a segment of host memory it hands out an address and nothing else: who may touch what
/// and when is the business of those who lay something into it.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Device,
    address: CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// `len` bytes of zeros, 256-byte aligned. Works while this thread captures a graph.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Call`] (also for no bytes at all).
    pub fn zeroed(device: &Device, len: usize) -> Result<DeviceMemory, CudaError> {
        let memory = Self::uninitialised(device, len)?;
        zero(device, memory.address, len)?;
        Ok(memory)
    }

    /// `len` bytes of anything, 256-byte aligned.
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

    /// Its first byte, as kernels know it.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "the driver makes no empty memory")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: allocated by this value alone, and whoever got its address promised not to outlive it.
        let code = unsafe { (self.device.api().cuMemFree_v2)(self.address) };
        self.device.released("cuMemFree", code);
    }
}

/// Zeros fresh memory and waits for it, on a stream of its own: on the default stream it would wait for every stream of the
/// user, and would break a capture.
pub(super) fn zero(device: &Device, address: CUdeviceptr, len: usize) -> Result<(), CudaError> {
    let _relaxed = RelaxedCapture::enter(device.driver());
    let stream = Stream::new(device)?;
    // SAFETY: (1) the caller has just allocated `len` bytes there and told nobody.
    unsafe { stream.by_ref().fill(address, 0, len) }?;
    stream.synchronize()
}
