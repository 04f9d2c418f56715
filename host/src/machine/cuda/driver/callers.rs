//! Memory that a caller allocated, as far as other processes are to map it.

use super::device::Device;
use super::legacy_ipc::handle_of;
use super::shareable::Allocation;
use crate::gpu::{CudaError, IPC_HANDLE_BYTES};
use cudarc::driver::sys::CUdeviceptr;
use std::os::fd::OwnedFd;

/// The allocation around a caller's address. It is the caller's: dropping this frees nothing.
#[derive(Debug)]
pub struct CallersMemory {
    device: Device,
    base: CUdeviceptr,
    len: usize,
    /// The memory behind it, if it is of `cuMemCreate`.
    allocation: Option<Allocation>,
}

impl CallersMemory {
    /// The allocation that `address` lies in.
    ///
    /// # Errors
    /// [`CudaError::Call`]: it is no GPU's memory.
    pub fn around(device: &Device, address: CUdeviceptr) -> Result<CallersMemory, CudaError> {
        let _bound = device.bind()?;
        let (mut base, mut len) = (0, 0);
        // SAFETY: both results are valid for a write; the driver refuses addresses that it does not know.
        let code = unsafe { (device.api().cuMemGetAddressRange_v2)(&mut base, &mut len, address) };
        device.check("cuMemGetAddressRange", code)?;
        let allocation = Allocation::mapped_at(device, base, len);
        Ok(CallersMemory { device: device.clone(), base, len, allocation })
    }

    /// Where the allocation begins.
    pub fn base(&self) -> CUdeviceptr {
        self.base
    }

    /// Its bytes.
    #[expect(clippy::len_without_is_empty, reason = "the driver makes no empty memory")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A descriptor with which another process maps it; `None` if it is not of `cuMemCreate`.
    ///
    /// # Errors
    /// [`CudaError::Call`]: it was not made to be exported.
    pub fn export(&self) -> Result<Option<OwnedFd>, CudaError> {
        self.allocation.as_ref().map(Allocation::export).transpose()
    }

    /// The handle with which another process maps it; `None` if it is of `cuMemCreate`.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn ipc_handle(&self) -> Result<Option<[u8; IPC_HANDLE_BYTES]>, CudaError> {
        match self.allocation {
            Some(_) => Ok(None),
            None => handle_of(&self.device, self.base).map(Some),
        }
    }
}
