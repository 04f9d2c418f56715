//! Counted slots in the GPU's memory, which the NIC's ends of connections are told of.
//!
//! Where a slot lies is each end's own matter: a sender whose slots are on its GPU and a receiver whose slots are on the host never learn
//! of each other's choice. So whatever cannot be had here is had on the host, and costs speed only.

use super::gdr::{Gdr, KnownBy};
use super::memory::Source;
use super::places::{NetPlace, NetPlaces};
use crate::gpu::{CudaError, NicMemory, RDMA_PAGE_BYTES};
use crate::net::{Comm, NetError, NetMemory, NetMemoryKind};
use crate::proxy::progress::{DeviceSlots, Keep};
use crate::transport::net::Dialed;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::Arc;

/// Of a rank's connections, those whose counted slots are on its GPU.
#[derive(Default)]
pub(super) struct CountedSlots {
    /// By place, as far as there are any.
    slots: Vec<Option<DeviceSlots>>,
    /// What they lie in.
    pub memory: Option<Keep>,
}

/// A GPU's memory, as a NIC is told of it.
struct Told {
    memory: Arc<dyn NicMemory>,
    dma_buf: Option<OwnedFd>,
}

impl CountedSlots {
    /// Makes memory for them on the GPU and registers it with the ends, as `gdr` says. What does not work is logged and left out.
    pub fn place(
        source: &dyn Source,
        gdr: Gdr,
        (rank, places): (u32, &NetPlaces),
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
        let told = match Told::new(source, gdr.known_by, len_bytes) {
            Ok(told) => told,
            Err(error) => {
                tracing::warn!(rank, %error, "GPUDirect is not used: no memory for the NIC; slots lie on the host");
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
                rank, ?name, %error,
                "GPUDirect is not used by {failed} of {of} connections: the NIC does not take the GPU's memory"
            );
        }
        let is_used = slots.iter().any(Option::is_some);
        CountedSlots { slots, memory: is_used.then(|| Arc::new(told.memory) as Keep) }
    }

    /// Those of a connection.
    pub fn of(&self, place: usize) -> Option<DeviceSlots> {
        self.slots.get(place).copied().flatten()
    }
}

impl Told {
    fn new(source: &dyn Source, known_by: KnownBy, len_bytes: usize) -> Result<Told, CudaError> {
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
        Ok(Told { memory, dma_buf })
    }

    /// Tells the end of a connection of its slots.
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
        // SAFETY: the end, which is all that uses the communicator, keeps the memory and is dropped before it.
        let registration = unsafe { comm.register(memory)? };
        let first = NonNull::new(without_provenance_mut(start)).expect("memory has an address");
        Ok(DeviceSlots { first, registration, needs_flush })
    }
}

/// Bytes of the GPU's memory for the slots of a connection: whole pages of it, lest a NIC be told of others' bytes.
fn piece_bytes(place: &NetPlace) -> usize {
    (place.slots.total_bytes() - place.counted_offset()).next_multiple_of(RDMA_PAGE_BYTES)
}
