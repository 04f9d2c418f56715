//! IPC handles with which another process can map memory of `cuMemAlloc`, for systems that refuse descriptors.
//!
//! Unlike an [`super::Allocation`], the memory must not be freed while another process has it mapped.

use super::capture::RelaxedCapture;
use super::device::Device;
use super::memory::DeviceMemory;
use crate::gpu::{CudaError, IPC_HANDLE_BYTES};
use cudarc::driver::sys::{CUdeviceptr, CUipcMemHandle};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const ENABLE_PEER_ACCESS: u32 = 1;

/// The handle of `memory`.
///
/// # Errors
/// [`CudaError::Call`].
pub fn ipc_handle(memory: &DeviceMemory) -> Result<[u8; IPC_HANDLE_BYTES], CudaError> {
    handle_of(memory.device(), memory.address())
}

/// The handle of the memory that begins at `address`; the driver refuses addresses of others.
pub(super) fn handle_of(device: &Device, address: CUdeviceptr) -> Result<[u8; IPC_HANDLE_BYTES], CudaError> {
    let _bound = device.bind()?;
    let mut handle = CUipcMemHandle { reserved: [0; IPC_HANDLE_BYTES] };
    // SAFETY: `handle` is valid for a write.
    let code = unsafe { (device.api().cuIpcGetMemHandle)(&mut handle, address) };
    device.check("cuIpcGetMemHandle", code)?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// Another process's memory, unmapped on drop.
#[derive(Debug)]
pub struct IpcMapping {
    device: Device,
    address: CUdeviceptr,
}

impl IpcMapping {
    /// Maps the memory of this handle for `device`. Fails for a handle of this very process.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn open(device: &Device, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<IpcMapping, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let handle = CUipcMemHandle { reserved: handle.map(|byte| byte as std::ffi::c_char) };
        let mut address = 0;
        // SAFETY: `address` is valid for a write; the driver refuses handles that are not its own.
        let code = unsafe { (device.api().cuIpcOpenMemHandle_v2)(&mut address, handle, ENABLE_PEER_ACCESS) };
        device.check("cuIpcOpenMemHandle", code)?;
        Ok(IpcMapping { device: device.clone(), address })
    }

    /// Its first byte for kernels of the device.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for IpcMapping {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: opened by this value alone, and users of its address promised not to outlive it.
        let code = unsafe { (self.device.api().cuIpcCloseMemHandle)(self.address) };
        self.device.released("cuIpcCloseMemHandle", code);
    }
}
