//! Device memory that NICs read and write directly (GPUDirect RDMA).

use super::capture::RelaxedCapture;
use super::device::Device;
use super::memory::DeviceMemory;
use super::shareable::{Allocation, Mapping};
use crate::gpu::{CudaError, RDMA_PAGE_BYTES, RdmaFacts};
use cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr};
use std::ffi::{c_int, c_uint};
use std::os::fd::{FromRawFd, OwnedFd};

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: u32 = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`.
const OVER_PCIE: u64 = 1;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: u32 = 6;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`; greater values hold for more devices.
const ORDERED_FOR_OWNER: i32 = 100;

/// Uninitialised device memory that NICs can register, aligned to [`RDMA_PAGE_BYTES`].
#[derive(Debug)]
pub struct RdmaMemory {
    device: Device,
    address: CUdeviceptr,
    len: usize,
    _memory: Memory,
}

/// Its allocation: by the driver's memory management where NICs may access such memory.
#[derive(Debug)]
enum Memory {
    Mapped { _memory: Mapping },
    Allocated { _memory: DeviceMemory },
}

impl Device {
    /// Whether, and how, NICs access its memory.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn rdma(&self) -> Result<RdmaFacts, CudaError> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED as DMA_BUF,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED as SUPPORTED,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as ORDERING,
        };
        Ok(RdmaFacts {
            is_supported: self.attribute(SUPPORTED)? != 0,
            dma_buf: self.attribute(DMA_BUF)? != 0,
            writes_are_ordered: self.attribute(ORDERING)? >= ORDERED_FOR_OWNER,
        })
    }
}

impl RdmaMemory {
    /// Allocates at least `len` bytes on `device`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Call`].
    pub fn new(device: &Device, len: usize) -> Result<RdmaMemory, CudaError> {
        let mapped = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        let len = len.next_multiple_of(RDMA_PAGE_BYTES);
        let (address, memory) = if device.attribute(mapped)? != 0 && device.exports_fds()? {
            // The driver maps whole pages of 2 MiB.
            let memory = Allocation::new(device, len)?.map(&[])?;
            (memory.address(), Memory::Mapped { _memory: memory })
        } else {
            let memory = DeviceMemory::uninitialised(device, len + RDMA_PAGE_BYTES)?;
            keep_copies_in_order(device, memory.address())?;
            let address = memory.address().next_multiple_of(RDMA_PAGE_BYTES as u64);
            (address, Memory::Allocated { _memory: memory })
        };
        Ok(RdmaMemory { device: device.clone(), address, len, _memory: memory })
    }

    /// The first byte, for kernels and for NICs that register by address.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "the driver makes no empty memory")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// All of it as a dma-buf, which need not outlive its registrations. `over_pcie`: the NIC is to use the PCIe bus,
    /// although the device has a faster path to its CPU.
    ///
    /// # Errors
    /// [`CudaError::Call`], for example with the closed kernel module.
    pub fn dma_buf(&self, over_pcie: bool) -> Result<OwnedFd, CudaError> {
        let _bound = self.device.bind()?;
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        let mut fd: c_int = -1;
        let flags = if over_pcie { OVER_PCIE } else { 0 };
        // SAFETY: for this kind of handle the driver writes a descriptor, for which `fd` is valid; the range is allocated.
        let code = unsafe {
            let to: *mut c_int = &mut fd;
            (self.device.api().cuMemGetHandleForAddressRange)(
                to.cast(),
                self.address,
                self.len,
                DMA_BUF_FD,
                flags,
            )
        };
        self.device.check("cuMemGetHandleForAddressRange", code)?;
        // SAFETY: a fresh descriptor, which this process owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Makes the driver's copies to and from this memory complete before its calls return, as NICs that register by
/// address require.
fn keep_copies_in_order(device: &Device, address: CUdeviceptr) -> Result<(), CudaError> {
    let _bound = device.bind()?;
    let yes: c_uint = 1;
    // SAFETY: the attribute is a number of this size, and the memory the driver's.
    let code = unsafe { (device.api().cuPointerSetAttribute)((&raw const yes).cast(), SYNC_MEMOPS, address) };
    device.check("cuPointerSetAttribute", code)
}
