//! Host memory that devices can access.

use super::capture::RelaxedCapture;
use super::device::Device;
use crate::gpu::{CudaError, MemoryKind};
use cudarc::driver::sys::CUdeviceptr;
use std::ffi::c_void;
use std::ptr::NonNull;

/// Every context of the process can use it, and kernels can address it (`CU_MEMHOSTALLOC_` and `CU_MEMHOSTREGISTER_`
/// `PORTABLE | DEVICEMAP`, which are the same numbers).
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// Pinned host memory allocated by the driver, freed on drop.
#[derive(Debug)]
pub struct PinnedMemory {
    device: Device,
    host: NonNull<u8>,
    address: CUdeviceptr,
    len: usize,
}

// SAFETY: an address range that stays valid until drop, whatever thread owns it.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; its methods read only fields that never change.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `len` zeroed bytes, page aligned, for the host and for every device of this process.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Call`].
    pub fn zeroed(device: &Device, len: usize) -> Result<PinnedMemory, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let mut host: *mut c_void = std::ptr::null_mut();
        // SAFETY: `host` is valid for a write; a context is current.
        let code = unsafe { (device.api().cuMemHostAlloc)(&mut host, len, PORTABLE_AND_MAPPED) };
        device.check_memory("cuMemHostAlloc", MemoryKind::PinnedHost, len, code)?;
        let host = NonNull::new(host.cast::<u8>()).expect("memory that was allocated has an address");
        let mut memory = PinnedMemory { device: device.clone(), host, address: 0, len };
        memory.address = device_address(device, host)?;
        // SAFETY: `len` bytes were allocated there and are not shared yet.
        unsafe { host.write_bytes(0, len) };
        Ok(memory)
    }

    /// Its first byte for the host.
    pub fn host(&self) -> *mut u8 {
        self.host.as_ptr()
    }

    /// Its first byte for kernels, on every device.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "the driver makes no empty memory")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: allocated by this value alone, and users of its address promised not to outlive it.
        let code = unsafe { (self.device.api().cuMemFreeHost)(self.host.as_ptr().cast()) };
        self.device.released("cuMemFreeHost", code);
    }
}

/// Existing host memory, such as a mapped file, registered with devices until drop.
#[derive(Debug)]
pub struct HostMapping {
    device: Device,
    host: NonNull<u8>,
    address: CUdeviceptr,
}

// SAFETY: as for `PinnedMemory`.
unsafe impl Send for HostMapping {}
// SAFETY: as for `PinnedMemory`.
unsafe impl Sync for HostMapping {}

impl HostMapping {
    /// Pins `len` bytes at `host`, page aligned, for every device of this process.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] if they cannot be pinned, [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. The bytes stay mapped until the value is dropped.
    pub unsafe fn register(device: &Device, host: NonNull<u8>, len: usize) -> Result<HostMapping, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        // SAFETY: the bytes are mapped (1); a context is current.
        let code =
            unsafe { (device.api().cuMemHostRegister_v2)(host.as_ptr().cast(), len, PORTABLE_AND_MAPPED) };
        device.check_memory("cuMemHostRegister", MemoryKind::PinnedHost, len, code)?;
        let mut mapping = HostMapping { device: device.clone(), host, address: 0 };
        mapping.address = device_address(device, host)?;
        Ok(mapping)
    }

    /// The first byte for kernels, on every device.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: registered by this value alone, and users of its address promised not to outlive it.
        let code = unsafe { (self.device.api().cuMemHostUnregister)(self.host.as_ptr().cast()) };
        self.device.released("cuMemHostUnregister", code);
    }
}

/// The address of pinned memory for kernels. The context is current.
fn device_address(device: &Device, host: NonNull<u8>) -> Result<CUdeviceptr, CudaError> {
    let mut address = 0;
    // SAFETY: `address` is valid for a write, and `host` is pinned and mapped.
    let code = unsafe { (device.api().cuMemHostGetDevicePointer_v2)(&mut address, host.as_ptr().cast(), 0) };
    device.check("cuMemHostGetDevicePointer", code).map(|()| address)
}
