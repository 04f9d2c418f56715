//! A GPU and its memory, as those see it who make connections. Asked at init only, so that `dyn` costs nothing.

use super::error::{CudaError, DeviceId};
use crate::mem::Segment;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of a handle ([`GpuMemory::ipc_handle`]), to be given to another process as they are.
pub const IPC_HANDLE_BYTES: usize = 64;

/// What a network card pins at a time: a GPU's page. Memory for one begins on its borders, or the card would reach into others'.
pub const RDMA_PAGE_BYTES: usize = 64 << 10;

/// What the driver says of a device and network cards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaFacts {
    /// Whether they may reach its memory at all.
    pub is_supported: bool,
    /// Whether memory can be given to them as a dma-buf.
    pub dma_buf: bool,
    /// Whether the device sees what they wrote before whatever they or others write later: then nobody need flush.
    pub writes_are_ordered: bool,
}

/// A GPU of this process. Each machine implements it over its driver.
pub trait Gpu: fmt::Debug + Send + Sync {
    /// How messages name it.
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

    /// Whether kernels here may access the memory of the GPU with this uuid; nothing if this process does not see that GPU.
    ///
    /// # Errors
    /// The driver's.
    fn can_access(&self, uuid: &[u8; 16]) -> Result<Option<bool>, CudaError>;

    /// Lets kernels here access what the GPU `ordinal` of this process allocates by [`Self::allocate`].
    ///
    /// # Errors
    /// The driver's.
    fn enable_peer(&self, ordinal: u32) -> Result<(), CudaError>;

    /// Whether, and how, network cards reach its memory.
    ///
    /// # Errors
    /// The driver's.
    fn rdma(&self) -> Result<RdmaFacts, CudaError>;

    /// Zeroed memory on the GPU, which other processes reach by [`GpuMemory::ipc_handle`].
    ///
    /// # Errors
    /// The driver's.
    fn allocate(&self, len_bytes: usize) -> Result<Arc<dyn GpuMemory>, CudaError>;

    /// Zeroed memory on the GPU, which other processes reach by [`GpuMemory::export`], and the GPUs `also` of this process by its address.
    ///
    /// # Errors
    /// The driver's.
    fn allocate_shareable(&self, len_bytes: usize, also: &[u32]) -> Result<Arc<dyn GpuMemory>, CudaError>;

    /// Zeroed memory of the host, pinned for all GPUs of this process.
    ///
    /// # Errors
    /// The driver's.
    fn pin(&self, len_bytes: usize) -> Result<HostVisible, CudaError>;

    /// Makes a mapped segment known to the GPU; both stay as long as what is returned.
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

    /// Memory on the GPU, of anything, that network cards can be told of, on borders of [`RDMA_PAGE_BYTES`].
    ///
    /// # Errors
    /// The driver's.
    fn allocate_for_nic(&self, len_bytes: usize) -> Result<Arc<dyn NicMemory>, CudaError>;

    /// Memory on the GPU that holds these bytes.
    ///
    /// # Errors
    /// The driver's.
    fn upload(&self, bytes: &[u8]) -> Result<Arc<dyn GpuMemory>, CudaError>;
}

/// Memory that a GPU uses; unmapped or freed when dropped.
pub trait GpuMemory: fmt::Debug + Send + Sync {
    /// Its address for kernels.
    fn address(&self) -> u64;

    /// Bytes that were allocated or mapped; 0 for what [`Gpu::open_ipc`] opened.
    fn len_bytes(&self) -> usize;

    /// The handle by which another process maps it; nothing for memory that is not shared so. The memory must not be freed while another
    /// process has it mapped.
    ///
    /// # Errors
    /// The driver's.
    fn ipc_handle(&self) -> Result<Option<[u8; IPC_HANDLE_BYTES]>, CudaError> {
        Ok(None)
    }

    /// A descriptor by which another process maps it; nothing for memory that is not shared so.
    ///
    /// # Errors
    /// The driver's.
    fn export(&self) -> Result<Option<OwnedFd>, CudaError> {
        Ok(None)
    }
}

/// Memory of the host that a GPU uses too.
#[derive(Debug)]
pub struct HostVisible {
    /// Its address for this process.
    pub host: NonNull<u8>,
    /// What keeps it, with its address for kernels.
    pub memory: Arc<dyn GpuMemory>,
}

/// Memory of a GPU that network cards can be told of.
pub trait NicMemory: Send + Sync {
    /// Its first byte, for kernels and for cards that know it by its address.
    fn address(&self) -> u64;

    /// All of it as a descriptor.
    ///
    /// # Errors
    /// The driver's.
    fn dma_buf(&self, over_pcie: bool) -> Result<OwnedFd, CudaError>;
}
