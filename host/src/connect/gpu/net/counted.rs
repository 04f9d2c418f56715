//! Simple slots in GPU memory, registered with the NIC's ends of connections.
//!
//! The placement of a slot is each end's own decision: a sender with slots in GPU memory and a receiver with slots in
//! host memory never learn of each other's. So a failure here selects host memory, and costs speed only.

use super::gdr::{Gdr, KnownBy};
use super::memory::Source;
use super::places::{NetPlace, NetPlaces};
use crate::gpu::{CudaError, NicMemory, RDMA_PAGE_BYTES};
use crate::net::{Comm, NetError, NetMemory, NetMemoryKind};
use crate::proxy::{DeviceSlots, Keep};
use crate::transport::net::Dialed;
use oxccl_shared::abi::Rank;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::Arc;

/// GPU memory for the Simple slots of some connections.
pub(super) struct CountedSlots {
    known: Notice,
    needs_flush: bool,
    /// By place, of those that have slots there.
    offsets: Vec<Option<usize>>,
}

/// GPU memory, as registered with a NIC.
struct Notice {
    memory: Arc<dyn NicMemory>,
    dma_buf: Option<OwnedFd>,
}

impl CountedSlots {
    /// Allocates it for connections that have not been made yet, as `gdr` decides. None if there is none, or none is wanted: a failure is
    /// logged, and the slots are in host memory.
    pub fn allocate(
        source: &dyn Source,
        gdr: Gdr,
        (rank, places): (Rank, &NetPlaces),
    ) -> Option<CountedSlots> {
        let mut len_bytes = 0;
        let mut piece = |place: &NetPlace| {
            let offset = len_bytes;
            let is_wanted = gdr.reads || !place.name.is_send;
            len_bytes += if is_wanted { piece_bytes(place) } else { 0 };
            is_wanted.then_some(offset)
        };
        let offsets: Vec<Option<usize>> = places.places.iter().map(&mut piece).collect();
        if len_bytes == 0 {
            return None;
        }
        match Notice::new(source, gdr.known_by, len_bytes) {
            Ok(known) => Some(CountedSlots { known, needs_flush: gdr.needs_flush, offsets }),
            Err(error) => {
                tracing::warn!(%rank, %error, "GPUDirect is not used: no memory for the NIC; slots lie on the host");
                None
            }
        }
    }

    /// The address of a place's first slot, if it has slots here.
    pub fn address(&self, at: usize) -> Option<u64> {
        self.offsets[at].map(|offset| self.known.memory.address() + offset as u64)
    }

    /// Registers the slots of a place with the communicator of its end, if it has slots here.
    pub fn register(
        &self,
        at: usize,
        comm: &mut dyn Comm,
        place: &NetPlace,
    ) -> Result<Option<DeviceSlots>, NetError> {
        let offset = self.offsets[at];
        offset.map(|offset| self.known.register(comm, place, offset, self.needs_flush)).transpose()
    }

    /// Registers all slots with ends that are connected. A failure is logged, and those slots are in host memory. Returns the others by
    /// place, and whether that is all.
    pub fn register_all(
        &self,
        (rank, places): (Rank, &NetPlaces),
        dialed: &mut Dialed,
    ) -> (Vec<Option<DeviceSlots>>, bool) {
        let (mut to, mut from) = (dialed.to.iter_mut(), dialed.from.iter_mut());
        let mut slots = Vec::new();
        let mut failures = Vec::new();
        for (at, place) in places.places.iter().enumerate() {
            let comm: Option<&mut dyn Comm> = match place.name.is_send {
                true => to.next().map(|comm| &mut **comm as &mut dyn Comm),
                false => from.next().map(|comm| &mut **comm as &mut dyn Comm),
            };
            let comm = comm.expect("every connection was dialed");
            slots.push(self.register(at, comm, place).unwrap_or_else(|error| {
                failures.push((place.name, error));
                None
            }));
        }
        if let Some((name, error)) = failures.first() {
            let (of, failed) = (slots.len(), failures.len());
            tracing::warn!(
                %rank, ?name, %error,
                "GPUDirect is not used by {failed} of {of} connections: the NIC does not take the GPU's memory"
            );
        }
        (slots, failures.is_empty())
    }

    /// The owner of the memory.
    pub fn keep(&self) -> Keep {
        Arc::new(self.known.memory.clone())
    }
}

impl Notice {
    fn new(source: &dyn Source, known_by: KnownBy, len_bytes: usize) -> Result<Notice, CudaError> {
        let memory = source.reached(len_bytes)?;
        let dma_buf = match known_by {
            KnownBy::Address => None,
            KnownBy::DmaBuf { over_pcie, or_address } => match memory.dma_buf(over_pcie) {
                Ok(fd) => Some(fd),
                Err(error) if or_address => {
                    tracing::debug!(%error, "the driver makes no dma-buf; the NIC is told the address");
                    None
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Notice { memory, dma_buf })
    }

    /// Registers its slots with the end of a connection.
    fn register(
        &self,
        comm: &mut dyn Comm,
        place: &NetPlace,
        offset: usize,
        needs_flush: bool,
    ) -> Result<DeviceSlots, NetError> {
        let start = self.memory.address() as usize + offset;
        let kind = match &self.dma_buf {
            Some(fd) => NetMemoryKind::DmaBuf { fd: fd.as_fd(), offset_bytes: offset as u64 },
            None => NetMemoryKind::Cuda,
        };
        let memory = NetMemory { start: without_provenance_mut(start), len_bytes: piece_bytes(place), kind };
        // SAFETY: the end, the communicator's only user, keeps the memory alive and is dropped before it.
        let registration = unsafe { comm.register(memory)? };
        let first = NonNull::new(without_provenance_mut(start)).expect("memory has an address");
        Ok(DeviceSlots { first, registration, needs_flush })
    }
}

/// Bytes of GPU memory for the slots of a connection: whole pages, so that a NIC gets access to no other bytes.
fn piece_bytes(place: &NetPlace) -> usize {
    (place.slots.total_bytes() - place.counted_offset()).next_multiple_of(RDMA_PAGE_BYTES)
}
