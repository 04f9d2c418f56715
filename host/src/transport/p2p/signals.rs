//! Words by which ranks of a host signal each other.
//!
//! In host memory, not on GPUs: a word can then be raised by any GPU of the host, whether it has access to the waiting one or not,
//! and by the processor, which ends the waits of a communicator that was aborted.

use super::allocation::{Method, P2pSettings};
use super::arena::split;
use super::error::P2pError;
use super::own::file_bytes;
use super::setup::{ArenaSetup, agree};
use super::wanted::ArenaWanted;
use crate::bootstrap::Bootstrap;
use crate::gpu::{Gpu, GpuMemory};
use crate::mem::{self, Segment, ShmFile, ShmName};
use crate::transport::PeerInfo;
use oxccl_shared::abi::Rank;
use oxccl_shared::sync::{Sys, Word};
use std::sync::Arc;

/// What to connect.
#[derive(Clone, Copy)]
pub struct SignalsWanted<'a> {
    /// This rank's device.
    pub device: &'a dyn Gpu,
    /// Peer info of all ranks.
    pub peers: &'a [PeerInfo],
    /// The user's settings; equal on all ranks.
    pub settings: &'a P2pSettings,
    /// Words for each pair of ranks and direction; equal on all ranks.
    pub slots: u32,
}

/// For each pair of ranks of this host, in each direction, some words. Each has one writer, the rank that signals, which counts up; or two
/// that take turns.
#[derive(Debug)]
pub struct SignalTable {
    /// This rank's place among those of its host.
    me: usize,
    locals: Vec<Rank>,
    slots: u32,
    /// The first word, for this process.
    base: *const Word<u64, Sys>,
    /// The file, mapped and registered.
    memory: Arc<dyn GpuMemory>,
}

// SAFETY: the words may be accessed by any thread, as long as the table keeps them mapped.
unsafe impl Send for SignalTable {}
// SAFETY: as above.
unsafe impl Sync for SignalTable {}

/// More signals than there will ever be, and less than where the driver's comparison turns round: as one word, and in each half of it.
const RELEASED: u64 = 1 << 62 | 1 << 30;

impl SignalTable {
    /// Makes the table of this host, in one file. All ranks of the communicator call it at the same time.
    ///
    /// # Errors
    /// As for [`super::Arena::connect`]. No file is left.
    pub fn connect(bootstrap: &Bootstrap, wanted: &SignalsWanted<'_>) -> Result<SignalTable, P2pError> {
        let SignalsWanted { device, peers, settings, slots } = *wanted;
        let nothing = ArenaWanted { device, peers, settings, refused: &[], lens: &|_: &_, _| [0, 0] };
        let setup = ArenaSetup::gather(bootstrap, &nothing)?;
        let rank = setup.rank;
        let locals: Vec<Rank> = setup.locals(rank).collect();
        let name = setup.file(locals[0], Method::Host);
        let len_bytes = file_bytes(locals.len() * locals.len() * slots as usize * size_of::<u64>());
        let (created, said) =
            split(create(&name, rank, locals[0], len_bytes), |_| slots.to_le_bytes().to_vec());
        let blocks = agree(bootstrap, said)?;
        let opened = same_slots(rank, &locals, &blocks, slots).and_then(|()| {
            let (segment, file) = match created.flatten() {
                Some((segment, file)) => (segment, Some(file)),
                None => {
                    let no_memory = |source| P2pError::Memory { rank, owner: locals[0], source };
                    (Segment::shm_open(&name, len_bytes).map_err(no_memory)?, None)
                }
            };
            let base = segment.base().cast_const().cast();
            let memory = device.register(segment).map_err(|source| P2pError::Device { rank, source })?;
            Ok((base, memory, file))
        });
        let (opened, said) = split(opened, |_| Vec::new());
        let agreed = agree(bootstrap, said);
        mem::unlink_all([name]);
        agreed?;
        let (base, memory, _file) = opened.ok_or(P2pError::Malformed { peer: rank })?;
        let me = locals.iter().position(|local| *local == rank).unwrap_or_default();
        Ok(SignalTable { me, locals, slots, base, memory })
    }

    /// The word by which `from` signals `to`, as this rank's device addresses it. `None` for ranks of other hosts and for slots that
    /// there are not.
    pub fn address(&self, to: Rank, from: Rank, slot: u32) -> Option<u64> {
        let place = |rank| self.locals.iter().position(|local| *local == rank);
        let index = self.index(place(to)?, place(from)?);
        (slot < self.slots).then(|| self.memory.address() + (index + slot as usize) as u64 * 8)
    }

    /// The same word, for this process.
    pub fn word(&self, to: Rank, from: Rank, slot: u32) -> Option<&Word<u64, Sys>> {
        let place = |rank| self.locals.iter().position(|local| *local == rank);
        let index = self.index(place(to)?, place(from)?) + slot as usize;
        // SAFETY: the table has the square of its ranks times its slots words, as long as it lives.
        (slot < self.slots).then(|| unsafe { &*self.base.add(index) })
    }

    /// Ends all waits of this rank, and those that follow.
    pub fn release(&self) {
        let first = self.index(self.me, 0);
        let count = self.locals.len() * self.slots as usize;
        for at in first..first + count {
            // SAFETY: the table has the square of its ranks times its slots words, as long as it lives.
            let word = unsafe { &*self.base.add(at) };
            // Relaxed: whoever waits for the word is told nothing by it but that there is nothing to wait for.
            word.store_relaxed(RELEASED);
        }
    }

    /// The first word of a pair.
    fn index(&self, to: usize, from: usize) -> usize {
        (to * self.locals.len() + from) * self.slots as usize
    }
}

/// The file, on the rank that makes it for its host.
fn create(
    name: &ShmName,
    rank: Rank,
    leader: Rank,
    len_bytes: usize,
) -> Result<Option<(Segment, ShmFile)>, P2pError> {
    if rank != leader {
        return Ok(None);
    }
    mem::sweep_stale();
    let made = Segment::shm_create(name, len_bytes);
    made.map(Some).map_err(|source| P2pError::Memory { rank, owner: rank, source })
}

/// Whether all ranks of the host want as many slots.
fn same_slots(rank: Rank, locals: &[Rank], blocks: &[Vec<u8>], slots: u32) -> Result<(), P2pError> {
    for peer in locals {
        let block =
            blocks[peer.index()].as_slice().try_into().map_err(|_| P2pError::Malformed { peer: *peer })?;
        let theirs = u32::from_le_bytes(block);
        if theirs != slots {
            let (expected, found) = (u64::from(slots) * 8, u64::from(theirs) * 8);
            return Err(P2pError::Length { rank, peer: *peer, expected, found });
        }
    }
    Ok(())
}
