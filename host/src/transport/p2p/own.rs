//! A rank's own memory, of any kind.

use super::allocation::AllocationKind;
use super::domains::Domain;
use super::error::P2pError;
use super::info::{IpcHandleBytes, MemoryInfo};
use crate::gpu::{CudaError, Gpu, GpuMemory};
use crate::mem::{MemError, Segment, ShmFile, ShmName};
use oxccl_shared::abi::Rank;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// What to allocate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// This rank.
    pub rank: Rank,
    /// Its device.
    pub device: &'a dyn Gpu,
    /// The kind of memory.
    pub kind: AllocationKind,
    /// Bytes requested.
    pub len_bytes: usize,
    /// Other devices of this process that use it.
    pub also: &'a [u32],
    /// Name of the host file.
    pub name: &'a ShmName,
    /// Whether another process uses it.
    pub is_foreign: bool,
}

/// Memory that others reach; freed when the last rank of this process that uses it lets go.
pub(super) struct OwnMemory {
    pub memory: Arc<dyn GpuMemory>,
    /// Others may open it until it is dropped.
    pub file: Option<ShmFile>,
}

/// Bytes of the file for memory of this length: the driver registers whole pages, and an allocation is never empty.
pub(super) fn file_bytes(len_bytes: usize) -> usize {
    len_bytes.max(1).next_multiple_of(rustix::param::page_size())
}

impl OwnMemory {
    /// Zeroed memory.
    pub fn new(wanted: &Wanted<'_>) -> Result<OwnMemory, P2pError> {
        let Wanted { rank, device, len_bytes, .. } = *wanted;
        let refused = |source: CudaError| P2pError::Device { rank, source };
        let len = len_bytes.max(1);
        let made = match wanted.kind {
            AllocationKind::Device => device.allocate(len),
            AllocationKind::Pinned => device.pin(len).map(|pinned| pinned.memory),
            AllocationKind::Shareable => device.allocate_shareable(len, wanted.also),
            AllocationKind::HostFile => {
                let no_memory = |source: MemError| P2pError::Memory { rank, owner: rank, source };
                let made = Segment::shm_create(wanted.name, file_bytes(len_bytes));
                let (segment, file) = made.map_err(no_memory)?;
                let memory = device.register(segment).map_err(refused)?;
                return Ok(OwnMemory { memory, file: Some(file) });
            }
        };
        Ok(OwnMemory { memory: made.map_err(refused)?, file: None })
    }
}

impl Wanted<'_> {
    /// What peers need to reach the memory that was made.
    pub fn info(&self, memory: &dyn GpuMemory) -> Result<MemoryInfo, P2pError> {
        let handle = match self.kind {
            AllocationKind::Device if self.is_foreign => {
                memory.ipc_handle().map_err(|source| P2pError::Device { rank: self.rank, source })?
            }
            _ => None,
        };
        Ok(MemoryInfo {
            kind: self.kind,
            len_bytes: self.len_bytes as u64,
            mapped_bytes: memory.len_bytes() as u64,
            address: memory.address(),
            handle: handle.map(IpcHandleBytes),
        })
    }
}

/// An arena (by the token that all its ranks know), a rank of it and one of its two memory domains.
pub(super) type Key = (u64, Rank, Domain);

/// Memory that ranks of this process show each other. Weak: the table keeps nobody's memory alive. Locked at communicator
/// creation only.
static SHOWN: LazyLock<Mutex<HashMap<Key, Weak<dyn GpuMemory>>>> = LazyLock::new(Mutex::default);

/// Shows memory to the arena's other ranks in this process, as long as it lives.
pub(super) fn show(key: Key, memory: &Arc<dyn GpuMemory>) {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    shown.retain(|_, memory| memory.strong_count() > 0);
    shown.insert(key, Arc::downgrade(memory));
}

/// The memory that a rank of this process showed.
pub(super) fn find(key: Key) -> Option<Arc<dyn GpuMemory>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade)
}
