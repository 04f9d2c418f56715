//! A rank's own memory, in whichever home it was given.

use super::card::Offer;
use super::error::P2pError;
use super::home::Home;
use super::sides::Side;
use crate::cuda::{
    Allocation, CudaError, Device, DeviceMemory, HostMapping, Mapping, PinnedMemory, ipc_handle,
};
use crate::mem::{MemError, Segment, ShmFile, ShmName};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// Memory that others reach; freed when the last rank of this process that uses it lets go.
#[derive(Debug)]
pub(super) enum Memory {
    Device(DeviceMemory),
    Shareable(Mapping),
    Pinned(PinnedMemory),
    HostFile(Registered),
}

/// A mapped file that devices reach. Fields in this order: it must not be unmapped while it is registered.
#[derive(Debug)]
pub(super) struct Registered {
    mapping: HostMapping,
    _segment: Segment,
}

impl Registered {
    pub fn new(device: &Device, segment: Segment) -> Result<Registered, CudaError> {
        let base = NonNull::new(segment.base()).expect("a mapping is not at address 0");
        // SAFETY: the segment is mapped as long as the value that keeps both lives.
        let mapping = unsafe { HostMapping::register(device, base, segment.len()) }?;
        Ok(Registered { mapping, _segment: segment })
    }

    pub fn address(&self) -> u64 {
        self.mapping.address()
    }
}

/// What to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// This rank.
    pub rank: u32,
    /// Its device.
    pub device: &'a Device,
    /// Where the memory is to lie.
    pub home: Home,
    /// Bytes that the caller wants.
    pub len_bytes: usize,
    /// Other devices of this process that use it.
    pub also: &'a [u32],
    /// For the host's file.
    pub name: &'a ShmName,
    /// Whether another process uses it.
    pub is_foreign: bool,
}

/// Bytes of the file for memory of this length: the driver registers whole pages, and no memory is empty.
pub(super) fn file_bytes(len_bytes: usize) -> usize {
    len_bytes.max(1).next_multiple_of(rustix::param::page_size())
}

impl Memory {
    /// Zeroed memory, and the file that others may open until it is dropped.
    pub fn new(wanted: &Wanted<'_>) -> Result<(Memory, Option<ShmFile>), P2pError> {
        let Wanted { rank, device, len_bytes, .. } = *wanted;
        let refused = |source| P2pError::Device { rank, source };
        let len = len_bytes.max(1);
        match wanted.home {
            Home::Device => {
                DeviceMemory::zeroed(device, len).map(|m| (Memory::Device(m), None)).map_err(refused)
            }
            Home::Pinned => {
                PinnedMemory::zeroed(device, len).map(|m| (Memory::Pinned(m), None)).map_err(refused)
            }
            Home::Shareable => {
                let mapping = Allocation::new(device, len).and_then(|memory| memory.map(wanted.also));
                let mapping =
                    mapping.and_then(|mapping| mapping.zero().map(|()| mapping)).map_err(refused)?;
                Ok((Memory::Shareable(mapping), None))
            }
            Home::HostFile => {
                let no_memory = |source: MemError| P2pError::Memory { rank, owner: rank, source };
                let made = Segment::shm_create(wanted.name, file_bytes(len_bytes));
                let (segment, file) = made.map_err(no_memory)?;
                let registered = Registered::new(device, segment).map_err(refused)?;
                Ok((Memory::HostFile(registered), Some(file)))
            }
        }
    }

    /// Its address for every device of this process that may use it.
    pub fn address(&self) -> u64 {
        match self {
            Memory::Device(memory) => memory.address(),
            Memory::Shareable(mapping) => mapping.address(),
            Memory::Pinned(memory) => memory.address(),
            Memory::HostFile(file) => file.address(),
        }
    }

    /// What peers need to reach it.
    pub fn offer(&self, wanted: &Wanted<'_>) -> Result<Offer, P2pError> {
        let (mapped, handle) = match self {
            Memory::Device(memory) if wanted.is_foreign => {
                let handle = ipc_handle(memory);
                (memory.len(), Some(handle.map_err(|source| P2pError::Device { rank: wanted.rank, source })?))
            }
            Memory::Device(memory) => (memory.len(), None),
            Memory::Shareable(mapping) => (mapping.len(), None),
            Memory::Pinned(memory) => (memory.len(), None),
            Memory::HostFile(_) => (file_bytes(wanted.len_bytes), None),
        };
        Ok(Offer {
            home: wanted.home,
            len_bytes: wanted.len_bytes as u64,
            mapped_bytes: mapped as u64,
            address: self.address(),
            handle,
        })
    }

    /// A descriptor for other processes, if that is how they reach it.
    pub fn export(&self) -> Result<Option<OwnedFd>, CudaError> {
        match self {
            Memory::Shareable(mapping) => mapping.allocation().export().map(Some),
            _ => Ok(None),
        }
    }
}

/// An arena (by the token that all its ranks know), a rank of it and one of its two memories.
pub(super) type Key = (u64, u32, Side);

/// Memory that ranks of this process show each other. Weak: the table keeps nobody's memory alive. Locked at communicator
/// creation only.
static SHOWN: LazyLock<Mutex<HashMap<Key, Weak<Memory>>>> = LazyLock::new(Mutex::default);

/// Shows memory to the arena's other ranks in this process, as long as it lives.
pub(super) fn show(key: Key, memory: &Arc<Memory>) {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    shown.retain(|_, memory| memory.strong_count() > 0);
    shown.insert(key, Arc::downgrade(memory));
}

/// The memory that a rank of this process showed.
pub(super) fn find(key: Key) -> Option<Arc<Memory>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade)
}
