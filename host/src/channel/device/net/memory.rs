//! Where connections over a network lie: the one place that chooses.
//!
//! Control words and slots together, in pinned host memory, always. The proxy reads and writes it as memory of its process, every
//! network as host memory, and kernels across PCIe, by the same instructions of system scope as any peer's memory
//! (docs/memory-model.md).
//!
//! Not there yet: slots announced by a counter in device memory that the NIC reaches (GPUDirect), for GPUs and NICs that are near
//! enough (`NCCL_NET_GDR_LEVEL`). The proxy has what it takes, `ProxyBlock::with_bulk`, the registration of device memory and the
//! flush; a kernel's end does not: its slots lie behind its control words (`ConnEnd`).

use super::places::NetPlace;
use crate::cuda::{CudaError, Device, PinnedMemory};
use crate::proxy::progress::{Keep, ProxyBlock};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that the proxy and kernels share, of zeros in the beginning.
#[derive(Clone)]
pub(super) struct NetMemory {
    host: NonNull<u8>,
    address: u64,
    len_bytes: usize,
    keep: Keep,
}

// SAFETY: an address of memory that `keep` keeps, reachable from every thread; nothing here follows it.
unsafe impl Send for NetMemory {}

impl NetMemory {
    /// For the connections of a rank with this GPU.
    pub fn pinned(device: &Device, len_bytes: usize) -> Result<NetMemory, CudaError> {
        let memory = PinnedMemory::zeroed(device, len_bytes)?;
        let host = NonNull::new(memory.host()).expect("pinned memory has an address");
        Ok(NetMemory { host, address: memory.address(), len_bytes, keep: Arc::new(memory) })
    }

    /// For kernels that run on the host.
    #[cfg(test)]
    pub fn of_host(len_bytes: usize) -> NetMemory {
        let segment = crate::mem::Segment::private(len_bytes).expect("memory");
        let host = NonNull::new(segment.base()).expect("a mapping has an address");
        NetMemory { host, address: host.addr().get() as u64, len_bytes, keep: Arc::new(segment) }
    }

    /// What keeps it.
    pub fn keep(&self) -> Keep {
        self.keep.clone()
    }

    /// Where a block begins for kernels.
    pub fn address(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    /// A connection's block as the proxy sees it.
    ///
    /// # Safety
    /// 1. The block's end keeps this memory, and nobody else makes a block of this place.
    pub unsafe fn block(&self, place: &NetPlace) -> ProxyBlock {
        assert!(place.offset + place.slots.total_bytes() <= self.len_bytes, "{place:?} lies outside");
        // SAFETY: checked to lie within the memory.
        let base = unsafe { self.host.add(place.offset) };
        // SAFETY: (1) places are multiples of 128 in page-aligned zeros, kept by obligation 1; (2) layouts of plans are valid.
        unsafe { ProxyBlock::in_host(base, place.slots) }
    }
}
