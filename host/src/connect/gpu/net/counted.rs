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

/// The connections of a rank whose Simple slots are in GPU memory.
#[derive(Default)]
pub(super) struct CountedSlots {
    /// By place, if there are any.
    slots: Vec<Option<DeviceSlots>>,
    /// Their memory.
    pub memory: Option<Keep>,
}

/// GPU memory, as registered with a NIC.
struct Notice {
    memory: Arc<dyn NicMemory>,
    dma_buf: Option<OwnedFd>,
}

impl CountedSlots {
    /// Allocates GPU memory for them and registers it with the ends, as `gdr` decides. Failures are logged; those
    /// slots stay in host memory.
    pub fn place(
        source: &dyn Source,
        gdr: Gdr,
        (rank, places): (Rank, &NetPlaces),
        dialed: &mut Dialed,
    ) -> CountedSlots {
        let mut len_bytes = 0;
        let mut piece = |place: &NetPlace| {
            let offset = len_bytes;
            let is_wanted = gdr.reads || !place.name.is_send;
            len_bytes += if is_wanted { piece_bytes(place) } else { 0 };
            is_wanted.then_some(offset)
        };
        let offsets: Vec<Option<usize>> = places.places.iter().map(&mut piece).collect();
        if len_bytes == 0 {
            return CountedSlots::default();
        }
        let told = match Notice::new(source, gdr.known_by, len_bytes) {
            Ok(told) => told,
            Err(error) => {
                tracing::warn!(%rank, %error, "GPUDirect is not used: no memory for the NIC; slots lie on the host");
                return CountedSlots::default();
            }
        };
        let (mut to, mut from) = (dialed.to.iter_mut(), dialed.from.iter_mut());
        let mut slots = Vec::new();
        let mut failures = Vec::new();
        for (place, offset) in places.places.iter().zip(offsets) {
            let comm: Option<&mut dyn Comm> = match place.name.is_send {
                true => to.next().map(|comm| &mut **comm as &mut dyn Comm),
                false => from.next().map(|comm| &mut **comm as &mut dyn Comm),
            };
            let comm = comm.expect("every connection was dialed");
            let known = offset.map(|offset| told.register(comm, place, offset, gdr.needs_flush)).transpose();
            slots.push(known.unwrap_or_else(|error| {
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
        let is_used = slots.iter().any(Option::is_some);
        CountedSlots { slots, memory: is_used.then(|| Arc::new(told.memory) as Keep) }
    }

    /// The slots of a connection.
    pub fn of(&self, place: usize) -> Option<DeviceSlots> {
        self.slots.get(place).copied().flatten()
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
