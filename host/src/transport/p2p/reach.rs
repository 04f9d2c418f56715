//! A peer's memory, as this rank reaches it.

use super::card::{Card, Offer};
use super::error::P2pError;
use super::home::Home;
use super::own::{Key, Memory, Registered, file_bytes, find};
use super::sides::Side;
use crate::cuda::{Allocation, CudaError, Device, IpcMapping, Mapping};
use crate::mem::{Segment, ShmName};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Keeps a peer's memory mapped.
#[derive(Debug)]
pub(super) enum Reach {
    /// Memory of this process.
    Shared(Arc<Memory>),
    Imported(Mapping),
    Legacy(IpcMapping),
    HostFile(Registered),
}

impl Reach {
    /// The memory's address on this rank's device.
    pub fn address(&self) -> u64 {
        match self {
            Reach::Shared(memory) => memory.address(),
            Reach::Imported(mapping) => mapping.address(),
            Reach::Legacy(mapping) => mapping.address(),
            Reach::HostFile(file) => file.address(),
        }
    }
}

/// A peer's memory and who wants it.
pub(super) struct Peer<'a> {
    /// This rank.
    pub rank: u32,
    /// Its device.
    pub device: &'a Device,
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
    pub fn share(&self) -> Result<Reach, P2pError> {
        let key: Key = (self.arena, self.peer, self.side);
        let memory = find(key).ok_or(P2pError::Gone { rank: self.rank, peer: self.peer })?;
        // What cuMem made is mapped for all devices of the process, and host memory is pinned for all.
        if matches!(*memory, Memory::Device(_)) {
            let ordinal = self.card.device.ordinal;
            let enabled = Device::open(ordinal).and_then(|owner| self.device.enable_peer(&owner));
            enabled.map_err(|source| self.refused(source))?;
        }
        Ok(Reach::Shared(memory))
    }

    /// Memory of a peer in another process; `fd` if that is how it is passed.
    pub fn open(&self, fd: Option<OwnedFd>) -> Result<Reach, P2pError> {
        let malformed = P2pError::Malformed { peer: self.peer };
        match self.offer.home {
            Home::Shareable => {
                let fd = fd.ok_or(malformed)?;
                let memory = Allocation::import(self.device, fd.as_fd(), self.offer.mapped_bytes as usize);
                let mapping = memory.and_then(|memory| memory.map(&[]));
                mapping.map(Reach::Imported).map_err(|source| self.refused(source))
            }
            Home::Device => {
                let handle = self.offer.handle.ok_or(malformed)?;
                let mapping = IpcMapping::open(self.device, &handle);
                mapping.map(Reach::Legacy).map_err(|source| self.refused(source))
            }
            Home::HostFile => {
                let name = ShmName::new(self.arena, oxccl_shared::abi::Rank(self.peer));
                let opened = Segment::shm_open(&name, file_bytes(self.offer.len_bytes as usize));
                let (rank, owner) = (self.rank, self.peer);
                let segment = opened.map_err(|source| P2pError::Memory { rank, owner, source })?;
                let registered = Registered::new(self.device, segment);
                registered.map(Reach::HostFile).map_err(|source| self.refused(source))
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
