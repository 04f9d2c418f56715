//! Registered memory.

use super::abi::Mr;
use super::abi::value::*;
use super::device::OpenDevice;
use std::ffi::{c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that the device may access; deregistered when dropped.
pub struct Region {
    device: Arc<OpenDevice>,
    mr: NonNull<Mr>,
}

// SAFETY: libibverbs allows its objects to be used from any thread; a region is never touched through this type.
unsafe impl Send for Region {}

const ACCESS: c_uint = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ;

impl Region {
    /// Registers memory of this process or, where the kernel has nvidia_peermem, of a CUDA device. With `relaxed`, if
    /// the library supports it, the device's writes may pass each other on the bus; a completion still comes after
    /// its data.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// 1. The memory stays mapped until the region is dropped.
    pub unsafe fn of_memory(
        device: &Arc<OpenDevice>,
        start: *mut c_void,
        len_bytes: usize,
        relaxed: bool,
    ) -> io::Result<Region> {
        let (verbs, pd) = (device.verbs, device.pd);
        let mr = match verbs.ibv_reg_mr_iova2.filter(|_| relaxed) {
            // SAFETY: the domain exists; obligation 1.
            Some(register) => unsafe {
                register(pd, start, len_bytes, start.addr() as u64, ACCESS | ACCESS_RELAXED_ORDERING)
            },
            // SAFETY: as above.
            None => unsafe { (verbs.ibv_reg_mr)(pd, start, len_bytes, ACCESS as i32) },
        };
        Region::of(device, mr)
    }

    /// Registers memory behind a dma-buf descriptor, at device addresses from `start`; `relaxed` as above.
    ///
    /// # Errors
    /// The driver's error; `Unsupported` if the library is older than rdma-core 34.
    ///
    /// # Safety
    /// 1. The memory stays mapped until the region is dropped.
    pub unsafe fn of_dma_buf(
        device: &Arc<OpenDevice>,
        fd: BorrowedFd<'_>,
        offset_bytes: u64,
        start: *mut c_void,
        len_bytes: usize,
        relaxed: bool,
    ) -> io::Result<Region> {
        let Some(register) = device.verbs.ibv_reg_dmabuf_mr else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let access = if relaxed { ACCESS | ACCESS_RELAXED_ORDERING } else { ACCESS };
        // SAFETY: the domain exists; obligation 1.
        let mr = unsafe {
            register(device.pd, offset_bytes, len_bytes, start.addr() as u64, fd.as_raw_fd(), access as i32)
        };
        Region::of(device, mr)
    }

    fn of(device: &Arc<OpenDevice>, mr: *mut Mr) -> io::Result<Region> {
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Region { device: device.clone(), mr })
    }

    /// The key for this side's requests.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region exists until drop, and its keys never change.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// The key for the peer's requests.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr.as_ptr()).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return;
        }
        // SAFETY: registered in a constructor. Requests that still use it fail instead of touching the memory.
        unsafe { (self.device.verbs.ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

/// Whether the driver supports dma-buf: it then refuses a bad descriptor with another error.
pub fn takes_dma_buf(device: &OpenDevice) -> bool {
    let Some(register) = device.verbs.ibv_reg_dmabuf_mr else { return false };
    // SAFETY: the domain exists; no memory is registered with a descriptor that does not exist.
    let mr = unsafe { register(device.pd, 0, 0, 0, -1, 0) };
    let errno = io::Error::last_os_error().raw_os_error();
    mr.is_null() && !matches!(errno, Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}
