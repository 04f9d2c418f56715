//! A peer's memory, as this rank reaches it.

use super::card::{Card, IpcHandleBytes, Offer};
use super::error::P2pError;
use super::home::Home;
use super::own::{Key, file_bytes, find};
use super::sides::Side;
use crate::gpu::{CudaError, Gpu, GpuMemory};
use crate::mem::{Segment, ShmName};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A peer's memory and who wants it.
pub(super) struct Peer<'a> {
    /// This rank.
    pub rank: u32,
    /// Its device.
    pub device: &'a dyn Gpu,
    /// The peer.
    pub peer: u32,
    /// Its GPU.
    pub card: &'a Card,
    /// What it said.
    pub offer: &'a Offer,
    /// The arena's token.
    pub arena: u64,
    /// Which of the peer's memories.
    pub side: Side,
}

impl Peer<'_> {
    /// Memory of a peer in this process.
    pub fn share(&self) -> Result<Arc<dyn GpuMemory>, P2pError> {
        let key: Key = (self.arena, self.peer, self.side);
        let memory = find(key).ok_or(P2pError::Gone { rank: self.rank, peer: self.peer })?;
        // What cuMem made is mapped for all devices of the process, and host memory is pinned for all.
        if self.offer.home == Home::Device {
            let enabled = self.device.enable_peer(self.card.device.ordinal);
            enabled.map_err(|source| self.refused(source))?;
        }
        Ok(memory)
    }

    /// Memory of a peer in another process; `fd` if that is how it is passed.
    pub fn open(&self, fd: Option<OwnedFd>) -> Result<Arc<dyn GpuMemory>, P2pError> {
        let malformed = P2pError::Malformed { peer: self.peer };
        match self.offer.home {
            Home::Shareable => {
                let fd = fd.ok_or(malformed)?;
                let memory = self.device.import(fd.as_fd(), self.offer.mapped_bytes as usize);
                memory.map_err(|source| self.refused(source))
            }
            Home::Device => {
                let IpcHandleBytes(handle) = self.offer.handle.ok_or(malformed)?;
                self.device.open_ipc(&handle).map_err(|source| self.refused(source))
            }
            Home::HostFile => {
                let name = ShmName::new(self.arena, oxccl_shared::abi::Rank(self.peer));
                let opened = Segment::shm_open(&name, file_bytes(self.offer.len_bytes as usize));
                let (rank, owner) = (self.rank, self.peer);
                let segment = opened.map_err(|source| P2pError::Memory { rank, owner, source })?;
                self.device.register(segment).map_err(|source| self.refused(source))
            }
            Home::Pinned => Err(malformed),
        }
    }

    fn refused(&self, source: CudaError) -> P2pError {
        P2pError::Map {
            rank: self.rank,
            device: self.device.id(),
            peer: self.peer,
            peer_device: self.card.device,
            home: self.offer.home,
            source,
        }
    }
}
