//! A GPU and its memory ([`Gpu`]), over the driver.

use super::driver::{
    Allocation, CallersMemory, Device, DeviceMemory, HostMapping, IpcMapping, Mapping, PinnedMemory,
    RdmaMemory, RelaxedCapture, ipc_handle, side_stream,
};
use crate::gpu::{CudaError, DeviceId, Gpu, GpuMemory, HostVisible, IPC_HANDLE_BYTES, NicMemory, RdmaFacts};
use crate::mem::Segment;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

impl Gpu for Device {
    fn id(&self) -> DeviceId {
        Device::id(self)
    }

    fn uuid(&self) -> [u8; 16] {
        Device::uuid(self)
    }

    fn sm(&self) -> u32 {
        Device::sm(self)
    }

    fn sm_count(&self) -> u32 {
        Device::sm_count(self)
    }

    fn exports_fds(&self) -> Result<bool, CudaError> {
        Device::exports_fds(self)
    }

    fn can_access(&self, uuid: &[u8; 16]) -> Result<Option<bool>, CudaError> {
        if *uuid == self.uuid() {
            return Ok(Some(true));
        }
        Device::ordinal_of(uuid)?.map(|ordinal| self.can_access_ordinal(ordinal)).transpose()
    }

    fn enable_peer(&self, ordinal: u32) -> Result<(), CudaError> {
        Device::open(ordinal).and_then(|owner| Device::enable_peer(self, &owner))
    }

    fn rdma(&self) -> Result<RdmaFacts, CudaError> {
        Device::rdma(self)
    }

    fn allocate(&self, len_bytes: usize) -> Result<Arc<dyn GpuMemory>, CudaError> {
        Ok(Arc::new(DeviceMemory::zeroed(self, len_bytes)?))
    }

    fn allocate_shareable(&self, len_bytes: usize, also: &[u32]) -> Result<Arc<dyn GpuMemory>, CudaError> {
        let mapping = Allocation::new(self, len_bytes)?.map(also)?;
        mapping.zero()?;
        Ok(Arc::new(mapping))
    }

    fn pin(&self, len_bytes: usize) -> Result<HostVisible, CudaError> {
        let memory = PinnedMemory::zeroed(self, len_bytes)?;
        let host = NonNull::new(memory.host()).expect("pinned memory has an address");
        Ok(HostVisible { host, memory: Arc::new(memory) })
    }

    fn register(&self, segment: Segment) -> Result<Arc<dyn GpuMemory>, CudaError> {
        let base = NonNull::new(segment.base()).expect("a mapping is not at address 0");
        // SAFETY: the segment is mapped as long as the value that keeps both lives.
        let mapping = unsafe { HostMapping::register(self, base, segment.len()) }?;
        Ok(Arc::new(Registered { mapping, segment }))
    }

    fn import(&self, fd: BorrowedFd<'_>, len_bytes: usize) -> Result<Arc<dyn GpuMemory>, CudaError> {
        Ok(Arc::new(Allocation::import(self, fd, len_bytes)?.map(&[])?))
    }

    fn open_ipc(&self, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<Arc<dyn GpuMemory>, CudaError> {
        Ok(Arc::new(IpcMapping::open(self, handle)?))
    }

    fn allocate_for_nic(&self, len_bytes: usize) -> Result<Arc<dyn NicMemory>, CudaError> {
        Ok(Arc::new(RdmaMemory::new(self, len_bytes)?))
    }

    fn upload(&self, bytes: &[u8]) -> Result<Arc<dyn GpuMemory>, CudaError> {
        let memory = DeviceMemory::uninitialised(self, bytes.len())?;
        self.write(memory.address(), bytes)?;
        Ok(Arc::new(memory))
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let _relaxed = RelaxedCapture::enter(self.driver());
        let stream = side_stream(self)?;
        // SAFETY: (1, 2) the memory was allocated for this, no kernel looks at these bytes, and `bytes` outlives the wait below.
        unsafe { stream.by_ref().copy_to_device(to, bytes.as_ptr().cast(), bytes.len()) }?;
        stream.synchronize()
    }
}

impl GpuMemory for DeviceMemory {
    fn address(&self) -> u64 {
        DeviceMemory::address(self)
    }

    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn ipc_handle(&self) -> Result<Option<[u8; IPC_HANDLE_BYTES]>, CudaError> {
        ipc_handle(self).map(Some)
    }
}

impl GpuMemory for Mapping {
    fn address(&self) -> u64 {
        Mapping::address(self)
    }

    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn export(&self) -> Result<Option<OwnedFd>, CudaError> {
        self.allocation().export().map(Some)
    }
}

impl GpuMemory for CallersMemory {
    fn address(&self) -> u64 {
        self.base()
    }

    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn export(&self) -> Result<Option<OwnedFd>, CudaError> {
        CallersMemory::export(self)
    }

    fn ipc_handle(&self) -> Result<Option<[u8; IPC_HANDLE_BYTES]>, CudaError> {
        CallersMemory::ipc_handle(self)
    }
}

impl GpuMemory for PinnedMemory {
    fn address(&self) -> u64 {
        PinnedMemory::address(self)
    }

    fn len_bytes(&self) -> usize {
        self.len()
    }
}

impl GpuMemory for IpcMapping {
    fn address(&self) -> u64 {
        IpcMapping::address(self)
    }

    fn len_bytes(&self) -> usize {
        0
    }
}

/// A mapped file that devices access. Field order matters: it must not be unmapped while it is registered.
#[derive(Debug)]
struct Registered {
    mapping: HostMapping,
    segment: Segment,
}

impl GpuMemory for Registered {
    fn address(&self) -> u64 {
        self.mapping.address()
    }

    fn len_bytes(&self) -> usize {
        self.segment.len()
    }
}

impl NicMemory for RdmaMemory {
    fn address(&self) -> u64 {
        RdmaMemory::address(self)
    }

    fn dma_buf(&self, over_pcie: bool) -> Result<OwnedFd, CudaError> {
        RdmaMemory::dma_buf(self, over_pcie)
    }
}
