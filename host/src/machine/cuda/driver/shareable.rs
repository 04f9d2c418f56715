//! Device memory that other processes and devices can map (the driver's virtual memory management).
//!
//! An [`Allocation`] is physical memory; a [`Mapping`] is an address range for it, with the devices that may use it.
//! The memory lives until the last allocation handle and the last mapping in any process are gone, so no process
//! frees it under another.

use super::api::{AllocationHandle, LOCATION_DEVICE, MemAccessDesc, MemAllocationProp, MemLocation};
use super::capture::RelaxedCapture;
use super::device::Device;
use super::memory::zero;
use crate::gpu::{CudaError, MemoryKind};
use cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;
/// `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED`.
const RECOMMENDED: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;

/// Physical memory of a device.
#[derive(Debug)]
pub struct Allocation {
    device: Device,
    handle: AllocationHandle,
    len: usize,
}

impl Allocation {
    /// Allocates at least `len` exportable bytes on `device`, rounded up to the device's mapping granularity (2 MiB).
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Call`] where the driver or a container forbids it.
    pub fn new(device: &Device, len: usize) -> Result<Allocation, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let properties = properties(device)?;
        let mut granularity = 0;
        // SAFETY: both pointers are valid for the call.
        let code = unsafe {
            (device.api().cuMemGetAllocationGranularity)(&mut granularity, &properties, RECOMMENDED)
        };
        device.check("cuMemGetAllocationGranularity", code)?;
        let len = len.next_multiple_of(granularity.max(1));
        let mut handle = 0;
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { (device.api().cuMemCreate)(&mut handle, len, &properties, 0) };
        device.check_memory("cuMemCreate", MemoryKind::Device, len, code)?;
        Ok(Allocation { device: device.clone(), handle, len })
    }

    /// The memory mapped at `address`, where a mapping of `len` bytes begins; `None` if it is not of `cuMemCreate`.
    pub fn mapped_at(device: &Device, address: CUdeviceptr, len: usize) -> Option<Allocation> {
        let _bound = device.bind().ok()?;
        let mut handle = 0;
        let start = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: `handle` is valid for a write; the driver refuses addresses that it has not mapped.
        let code = unsafe { (device.api().cuMemRetainAllocationHandle)(&mut handle, start) };
        (code == 0).then(|| Allocation { device: device.clone(), handle, len })
    }

    /// Exports a descriptor with which another process can map the memory.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut fd: c_int = -1;
        // SAFETY: for this kind of handle the driver writes a descriptor, for which `fd` is valid.
        let code = unsafe {
            let to: *mut c_int = &mut fd;
            (self.device.api().cuMemExportToShareableHandle)(to.cast(), self.handle, FILE_DESCRIPTOR, 0)
        };
        self.device.check("cuMemExportToShareableHandle", code)?;
        // SAFETY: a fresh descriptor, which this process owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Imports the memory of a descriptor that another process exported, which has `len` bytes (by that process's
    /// [`Self::len`]). `device` is the one that will use it, wherever it is.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn import(device: &Device, fd: BorrowedFd<'_>, len: usize) -> Result<Allocation, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let mut handle = 0;
        // SAFETY: `handle` is valid for a write; for this kind of handle the pointer's value is the descriptor. The driver
        // refuses descriptors that are not its own.
        let code = unsafe {
            let fd = fd.as_raw_fd() as isize as *mut c_void;
            (device.api().cuMemImportFromShareableHandle)(&mut handle, fd, FILE_DESCRIPTOR)
        };
        device.check("cuMemImportFromShareableHandle", code)?;
        Ok(Allocation { device: device.clone(), handle, len })
    }

    /// Bytes, rounded up.
    #[expect(clippy::len_without_is_empty, reason = "the driver makes no empty memory")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Maps the memory, for kernels of this allocation's device and of the devices `also` of this process.
    ///
    /// # Errors
    /// [`CudaError::Call`]; if a device cannot access the memory, by `cuMemSetAccess`.
    pub fn map(self, also: &[u32]) -> Result<Mapping, CudaError> {
        let device = self.device.clone();
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let reserved = Reserved::new(&device, self.len)?;
        // SAFETY: the range is reserved, as long as the allocation, and nothing is mapped in it.
        let code = unsafe { (device.api().cuMemMap)(reserved.address, self.len, 0, self.handle, 0) };
        device.check("cuMemMap", code)?;
        let mapping = Mapping { device: device.clone(), reserved, allocation: self };
        let users = std::iter::once(device.ordinal()).chain(also.iter().copied());
        let access: Vec<MemAccessDesc> =
            users.map(|user| MemAccessDesc { location: location(user), flags: READ_WRITE }).collect();
        // SAFETY: the whole mapped range; `access` is valid for its length.
        let code = unsafe {
            (device.api().cuMemSetAccess)(mapping.address(), mapping.len(), access.as_ptr(), access.len())
        };
        device.check("cuMemSetAccess", code)?;
        Ok(mapping)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: made, imported or retained by this value alone. Mappings keep the memory itself.
        let code = unsafe { (self.device.api().cuMemRelease)(self.handle) };
        self.device.released("cuMemRelease", code);
    }
}

/// A mapped address range of an allocation. Dropping it unmaps without waiting for kernels that use it.
#[derive(Debug)]
pub struct Mapping {
    device: Device,
    reserved: Reserved,
    allocation: Allocation,
}

impl Mapping {
    /// The first byte for kernels of the devices it was mapped for.
    pub fn address(&self) -> CUdeviceptr {
        self.reserved.address
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "the driver makes no empty memory")]
    pub fn len(&self) -> usize {
        self.reserved.len
    }

    /// The memory behind it, to be exported.
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Zeroes all of it and waits for that. For memory that is not shared yet.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn zero(&self) -> Result<(), CudaError> {
        zero(&self.device, self.address(), self.len())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: mapped by this value alone, and users of its address promised not to outlive it.
        let code = unsafe { (self.device.api().cuMemUnmap)(self.address(), self.len()) };
        self.device.released("cuMemUnmap", code);
    }
}

/// A reserved address range without a mapping.
#[derive(Debug)]
struct Reserved {
    device: Device,
    address: CUdeviceptr,
    len: usize,
}

impl Reserved {
    fn new(device: &Device, len: usize) -> Result<Reserved, CudaError> {
        let mut address = 0;
        // SAFETY: `address` is valid for a write; 0 lets the driver choose alignment and place.
        let code = unsafe { (device.api().cuMemAddressReserve)(&mut address, len, 0, 0, 0) };
        device.check("cuMemAddressReserve", code)?;
        Ok(Reserved { device: device.clone(), address, len })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: reserved by this value alone; a mapping was removed before its range is dropped.
        let code = unsafe { (self.device.api().cuMemAddressFree)(self.address, self.len) };
        self.device.released("cuMemAddressFree", code);
    }
}

fn location(ordinal: u32) -> MemLocation {
    MemLocation { kind: LOCATION_DEVICE, id: ordinal as c_int }
}

/// Exportable by descriptor and, if the device supports it, accessible for NICs.
fn properties(device: &Device) -> Result<MemAllocationProp, CudaError> {
    let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    Ok(MemAllocationProp {
        kind: PINNED,
        handle_kinds: FILE_DESCRIPTOR,
        location: location(device.ordinal()),
        win32_metadata: std::ptr::null_mut(),
        compression: 0,
        gpu_direct_rdma: u8::from(device.attribute(rdma)? != 0),
        usage: 0,
        reserved: [0; 4],
    })
}
