//! A peer's memory, mapped for this rank.

use super::allocation::AllocationKind;
use super::domains::Domain;
use super::error::P2pError;
use super::info::{GpuInfo, IpcHandleBytes, MemoryInfo};
use super::own::{Key, file_bytes, find};
use crate::gpu::{CudaError, Gpu, GpuMemory};
use crate::mem::{Segment, ShmName};
use oxccl_shared::abi::Rank;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A peer's memory and the rank that maps it.
pub(super) struct Peer<'a> {
    /// This rank.
    pub rank: Rank,
    /// Its device.
    pub device: &'a dyn Gpu,
    /// The peer.
    pub peer: Rank,
    /// Its GPU.
    pub gpu: &'a GpuInfo,
    /// Its description.
    pub info: &'a MemoryInfo,
    /// The arena's token.
    pub arena: u64,
    /// The memory domain.
    pub domain: Domain,
    /// The peer's file, where its memory is one.
    pub name: ShmName,
}

impl Peer<'_> {
    /// Memory of a peer in this process.
    pub fn share(&self) -> Result<Arc<dyn GpuMemory>, P2pError> {
        let key: Key = (self.arena, self.peer, self.domain);
        let memory = find(key).ok_or(P2pError::Gone { rank: self.rank, peer: self.peer })?;
        // What cuMem made is mapped for all devices of the process, and host memory is pinned for all.
        if self.info.kind == AllocationKind::Device {
            let enabled = self.device.enable_peer(self.gpu.device.ordinal);
            enabled.map_err(|source| self.refused(source))?;
        }
        Ok(memory)
    }

    /// Memory of a peer in another process; `fd` if that is how it is passed.
    pub fn open(&self, fd: Option<OwnedFd>) -> Result<Arc<dyn GpuMemory>, P2pError> {
        let malformed = P2pError::Malformed { peer: self.peer };
        match self.info.kind {
            AllocationKind::Shareable => {
                let fd = fd.ok_or(malformed)?;
                let memory = self.device.import(fd.as_fd(), self.info.mapped_bytes as usize);
                memory.map_err(|source| self.refused(source))
            }
            AllocationKind::Device => {
                let IpcHandleBytes(handle) = self.info.handle.ok_or(malformed)?;
                self.device.open_ipc(&handle).map_err(|source| self.refused(source))
            }
            AllocationKind::HostFile => {
                let opened = Segment::shm_open(&self.name, file_bytes(self.info.len_bytes as usize));
                let (rank, owner) = (self.rank, self.peer);
                let segment = opened.map_err(|source| P2pError::Memory { rank, owner, source })?;
                self.device.register(segment).map_err(|source| self.refused(source))
            }
            AllocationKind::Pinned => Err(malformed),
        }
    }

    fn refused(&self, source: CudaError) -> P2pError {
        P2pError::Map {
            rank: self.rank,
            device: self.device.id(),
            peer: self.peer,
            peer_device: self.gpu.device,
            kind: self.info.kind,
            source,
        }
    }
}
