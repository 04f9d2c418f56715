//! A connection's block in memory that another process can map by its descriptor.

use crate::proxy::progress::ProxyBlock;
use oxccl_shared::abi::ConnLayout;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Why a block could not be made or mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// The system refused.
    #[error("{call} of a connection's block of {len_bytes} bytes: {errno}")]
    System {
        /// The system call.
        call: &'static str,
        /// How long the block is.
        len_bytes: usize,
        /// What it said.
        errno: Errno,
    },
    /// Another process sent a descriptor of something else.
    #[error(
        "the proxy's block has {found} bytes where this rank expects {expected}; NCCL_BUFFSIZE must be equal on all ranks"
    )]
    Length {
        /// What this rank's layout says.
        expected: usize,
        /// What the descriptor has.
        found: u64,
    },
    /// It could be cut short under its users, who would die of it.
    #[error("the proxy's block is not sealed against changes of its length")]
    Unsealed,
}

/// A block, mapped here.
#[derive(Debug)]
pub struct SharedBlock {
    fd: OwnedFd,
    start: NonNull<c_void>,
    layout: ConnLayout,
}

// SAFETY: a mapping is reachable from every thread; what lies in it is shared by design, through words.
unsafe impl Send for SharedBlock {}
// SAFETY: as above.
unsafe impl Sync for SharedBlock {}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

impl SharedBlock {
    /// Fresh memory for a connection of this layout.
    ///
    /// # Errors
    /// [`BlockError::System`].
    pub fn new(layout: ConnLayout) -> Result<SharedBlock, BlockError> {
        let len_bytes = layout.total_bytes();
        let system = |call| move |errno| BlockError::System { call, len_bytes, errno };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("oxccl-block", flags).map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, len_bytes as u64).map_err(system("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS | SealFlags::SEAL).map_err(system("fcntl(F_ADD_SEALS)"))?;
        SharedBlock::map(fd, layout)
    }

    /// The block that another process made.
    ///
    /// # Errors
    /// [`BlockError`]: the descriptor is not that of a block of this layout.
    pub fn open(fd: OwnedFd, layout: ConnLayout) -> Result<SharedBlock, BlockError> {
        let expected = layout.total_bytes();
        let system = |call| move |errno| BlockError::System { call, len_bytes: expected, errno };
        let found = rustix::fs::fstat(&fd).map_err(system("fstat"))?.st_size as u64;
        if found != expected as u64 {
            return Err(BlockError::Length { expected, found });
        }
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(system("fcntl(F_GET_SEALS)"))?;
        if !seals.contains(SEALS) {
            return Err(BlockError::Unsealed);
        }
        SharedBlock::map(fd, layout)
    }

    fn map(fd: OwnedFd, layout: ConnLayout) -> Result<SharedBlock, BlockError> {
        let len_bytes = layout.total_bytes();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len_bytes, prot, MapFlags::SHARED, fd.as_fd(), 0)
        };
        let start = start.map_err(|errno| BlockError::System { call: "mmap", len_bytes, errno })?;
        let start =
            NonNull::new(start).ok_or(BlockError::System { call: "mmap", len_bytes, errno: Errno::NOMEM })?;
        Ok(SharedBlock { fd, start, layout })
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.layout.total_bytes()
    }

    /// Its first byte: where a kernel's end is made.
    pub fn base(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// As a proxy sees it.
    ///
    /// # Safety
    /// 1. It is used no longer than this lives.
    pub unsafe fn proxy_block(&self) -> ProxyBlock {
        // SAFETY: page aligned, as long as the layout says, zeroed when it was made; obligation 1.
        unsafe { ProxyBlock::in_host(self.base(), self.layout) }
    }
}

impl Drop for SharedBlock {
    fn drop(&mut self) {
        // SAFETY: our own mapping of this length, which nobody uses any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len_bytes()) };
    }
}
