//! Memory of connections over a network: control words and line slots in pinned host memory, Simple slots there too
//! or in GPU memory.
//!
//! The proxy accesses pinned memory as memory of its process, every network as host memory, and kernels over PCIe, by
//! the same instructions of system scope as any peer's memory (docs/memory-model.md). Only kernels and the NIC access
//! GPU memory.

use super::places::{NetPlace, NetPlaces};
use crate::connect::gpu::layout::ConnName;
use crate::connect::gpu::tables::ConnSite;
use crate::gpu::{CudaError, Gpu, HostVisible, NicMemory};
use crate::proxy::{Keep, ProxyBlock};
use oxccl_shared::abi::ConnLayout;
use std::ptr::NonNull;
use std::sync::Arc;

/// Allocates memory for a rank's connections: its GPU's driver.
pub(in crate::connect::gpu) trait Source {
    /// Allocates host memory.
    fn host(&self, len_bytes: usize) -> Result<HostMemory, CudaError>;
    /// Memory of the GPU.
    fn reached(&self, len_bytes: usize) -> Result<Arc<dyn NicMemory>, CudaError>;
}

impl Source for &dyn Gpu {
    fn host(&self, len_bytes: usize) -> Result<HostMemory, CudaError> {
        let HostVisible { host, memory } = self.pin(len_bytes)?;
        Ok(HostMemory { host, address: memory.address(), len_bytes, keep: Arc::new(memory) })
    }

    fn reached(&self, len_bytes: usize) -> Result<Arc<dyn NicMemory>, CudaError> {
        self.allocate_for_nic(len_bytes)
    }
}

/// A connection as kernels and reports know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::connect::gpu) struct PlacedConn {
    pub name: ConnName,
    pub site: ConnSite,
    /// Bytes of its half on this host, in any memory.
    pub len_bytes: usize,
}

/// Zeroed memory that the proxy and kernels share.
#[derive(Clone)]
pub(in crate::connect::gpu) struct HostMemory {
    host: NonNull<u8>,
    address: u64,
    len_bytes: usize,
    keep: Keep,
}

// SAFETY: an address of memory that `keep` keeps alive, reachable from every thread; nothing here dereferences it.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// For kernels that run on the host.
    #[cfg(test)]
    pub fn of_process(len_bytes: usize) -> HostMemory {
        let segment = crate::mem::Segment::private(len_bytes).expect("memory");
        let host = NonNull::new(segment.base()).expect("a mapping has an address");
        HostMemory { host, address: host.addr().get() as u64, len_bytes, keep: Arc::new(segment) }
    }

    /// The owner of the memory.
    pub fn keep(&self) -> Keep {
        self.keep.clone()
    }

    /// Address of a block for kernels.
    pub fn address(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    /// The connections that lie here.
    pub fn conns(&self, places: &NetPlaces) -> Vec<PlacedConn> {
        let placed = places.places.iter().map(|place| {
            let behind = ConnSite::new([self.address(place.offset); 2], place.slots);
            let site = ConnSite { counted: place.counted.unwrap_or(behind.counted), ..behind };
            PlacedConn { name: place.name, site, len_bytes: place.slots.total_bytes() }
        });
        placed.collect()
    }

    /// A connection's block for the proxy. If its Simple slots are elsewhere, the caller adds them.
    ///
    /// # Safety
    /// 1. The block's end keeps this memory alive, and nobody else creates a block of this place.
    /// 2. If the place has no Simple slots here, the caller tells the block where they are.
    pub unsafe fn block(&self, place: &NetPlace) -> ProxyBlock {
        // SAFETY: obligations 1 and 2.
        unsafe { self.block_at(place.offset, place.host_bytes(), place.slots) }
    }

    /// A connection's block for the proxy, with all of its slots.
    ///
    /// # Safety
    /// 1. The block's end keeps this memory alive, and nobody else creates a block that overlaps it.
    pub unsafe fn whole_block(&self, offset: usize, slots: ConnLayout) -> ProxyBlock {
        // SAFETY: obligation 1.
        unsafe { self.block_at(offset, slots.total_bytes(), slots) }
    }

    /// # Safety
    /// 1. As [`Self::block`]; this many bytes from the offset on are the block's.
    unsafe fn block_at(&self, offset: usize, len_bytes: usize, slots: ConnLayout) -> ProxyBlock {
        assert!(offset + len_bytes <= self.len_bytes, "a block at {offset} lies outside");
        // SAFETY: checked to lie within the memory.
        let base = unsafe { self.host.add(offset) };
        // SAFETY: (1) places are multiples of 128 in page-aligned zeros, kept alive by obligation 1, complete by
        // obligation 2 of `block`; (2) layouts of plans are valid.
        unsafe { ProxyBlock::in_host(base, slots) }
    }
}
