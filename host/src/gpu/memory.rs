//! A GPU and its memory, for the setup of connections. Used where they are made only, so `dyn` costs nothing.

use super::error::{CudaError, DeviceId};
use crate::mem::Segment;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of an IPC handle ([`GpuMemory::ipc_handle`]), which another process uses unchanged.
pub const IPC_HANDLE_BYTES: usize = 64;

/// The unit that a NIC pins: a GPU's page. Memory for a NIC is aligned to it, so that the NIC gets access to no other
/// bytes.
pub const RDMA_PAGE_BYTES: usize = 64 << 10;

/// The driver's facts about a device and GPUDirect RDMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaFacts {
    /// Whether NICs may access its memory.
    pub is_supported: bool,
    /// Whether its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// Whether the device sees a NIC's writes before all later writes: then no flush is needed.
    pub writes_are_ordered: bool,
}

/// A GPU of this process. Each machine implements it over its driver.
pub trait Gpu: fmt::Debug + Send + Sync {
    /// Its name in messages.
    fn id(&self) -> DeviceId;

    /// Its uuid, the same in every process.
    fn uuid(&self) -> [u8; 16];

    /// Its compute capability: 90 is 9.0.
    fn sm(&self) -> u32;

    /// Its multiprocessors.
    fn sm_count(&self) -> u32;

    /// Whether its memory can be exported as file descriptors.
    ///
    /// # Errors
    /// The driver's.
    fn exports_fds(&self) -> Result<bool, CudaError>;

    /// Whether kernels here may access the memory of the GPU with this UUID; `None` if this process does not see that
    /// GPU.
    ///
    /// # Errors
    /// The driver's.
    fn can_access(&self, uuid: &[u8; 16]) -> Result<Option<bool>, CudaError>;

    /// Enables access from kernels here to memory that the GPU `ordinal` of this process allocates by
    /// [`Self::allocate`].
    ///
    /// # Errors
    /// The driver's.
    fn enable_peer(&self, ordinal: u32) -> Result<(), CudaError>;

    /// Whether, and how, NICs access its memory.
    ///
    /// # Errors
    /// The driver's.
    fn rdma(&self) -> Result<RdmaFacts, CudaError>;

    /// Allocates zeroed GPU memory, which other processes map by [`GpuMemory::ipc_handle`].
    ///
    /// # Errors
    /// The driver's.
    fn allocate(&self, len_bytes: usize) -> Result<Arc<dyn GpuMemory>, CudaError>;

    /// Allocates zeroed GPU memory, which other processes map by [`GpuMemory::export`]; the GPUs `also` of this
    /// process access it by its address.
    ///
    /// # Errors
    /// The driver's.
    fn allocate_shareable(&self, len_bytes: usize, also: &[u32]) -> Result<Arc<dyn GpuMemory>, CudaError>;

    /// Allocates zeroed host memory, pinned for all GPUs of this process.
    ///
    /// # Errors
    /// The driver's.
    fn pin(&self, len_bytes: usize) -> Result<HostVisible, CudaError>;

    /// Registers a mapped segment with the GPU; both live as long as the result.
    ///
    /// # Errors
    /// The driver's.
    fn register(&self, segment: Segment) -> Result<Arc<dyn GpuMemory>, CudaError>;

    /// Maps memory that another process exported ([`GpuMemory::export`]).
    ///
    /// # Errors
    /// The driver's.
    fn import(&self, fd: BorrowedFd<'_>, len_bytes: usize) -> Result<Arc<dyn GpuMemory>, CudaError>;

    /// Maps memory of another process by its handle ([`GpuMemory::ipc_handle`]).
    ///
    /// # Errors
    /// The driver's.
    fn open_ipc(&self, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<Arc<dyn GpuMemory>, CudaError>;

    /// Allocates uninitialised GPU memory that NICs can register, aligned to [`RDMA_PAGE_BYTES`].
    ///
    /// # Errors
    /// The driver's.
    fn allocate_for_nic(&self, len_bytes: usize) -> Result<Arc<dyn NicMemory>, CudaError>;

    /// Allocates GPU memory with this content.
    ///
    /// # Errors
    /// The driver's.
    fn upload(&self, bytes: &[u8]) -> Result<Arc<dyn GpuMemory>, CudaError>;

    /// Writes to memory of [`Self::upload`] that no kernel under way looks at, beside the work of all streams. Returns when it is done.
    ///
    /// # Errors
    /// The driver's.
    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError>;
}

/// Memory that a GPU uses; unmapped or freed when dropped.
pub trait GpuMemory: fmt::Debug + Send + Sync {
    /// Its address for kernels.
    fn address(&self) -> u64;

    /// Bytes allocated or mapped; 0 for memory of [`Gpu::open_ipc`].
    fn len_bytes(&self) -> usize;

    /// The IPC handle with which another process maps it; `None` for other kinds of memory. The memory must not be
    /// freed while another process has it mapped.
    ///
    /// # Errors
    /// The driver's.
    fn ipc_handle(&self) -> Result<Option<[u8; IPC_HANDLE_BYTES]>, CudaError> {
        Ok(None)
    }

    /// A descriptor with which another process maps it; `None` for other kinds of memory.
    ///
    /// # Errors
    /// The driver's.
    fn export(&self) -> Result<Option<OwnedFd>, CudaError> {
        Ok(None)
    }
}

/// Host memory that a GPU uses too.
#[derive(Debug)]
pub struct HostVisible {
    /// Its address for this process.
    pub host: NonNull<u8>,
    /// The owner of the memory, with its address for kernels.
    pub memory: Arc<dyn GpuMemory>,
}

/// GPU memory that NICs can register.
pub trait NicMemory: Send + Sync {
    /// Its first byte, for kernels and for NICs that register by address.
    fn address(&self) -> u64;

    /// All of it as a descriptor.
    ///
    /// # Errors
    /// The driver's.
    fn dma_buf(&self, over_pcie: bool) -> Result<OwnedFd, CudaError>;
}
