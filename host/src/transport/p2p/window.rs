//! Windows: memory of callers that the ranks of a host have mapped.

use super::allocation::{AllocationKind, Method, P2pSettings};
use super::arena::split;
use super::descriptors::{Mailbox, Party};
use super::domains::{Domain, Domains};
use super::error::P2pError;
use super::info::{IpcHandleBytes, MemoryInfo};
use super::own::{find, show};
use super::reach::Peer;
use super::setup::{ArenaSetup, agree, read_all};
use super::wanted::ArenaWanted;
use crate::bootstrap::Bootstrap;
use crate::gpu::{CudaError, Gpu, GpuMemory};
use crate::transport::PeerInfo;
use crate::wire::{Message, cut};
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

/// What to show to the other ranks.
#[derive(Clone)]
pub struct WindowWanted<'a> {
    /// This rank's device.
    pub device: &'a dyn Gpu,
    /// Peer info of all ranks.
    pub peers: &'a [PeerInfo],
    /// The user's settings; equal on all ranks.
    pub settings: &'a P2pSettings,
    /// The allocation around the window, or why it is none.
    pub memory: Result<Arc<dyn GpuMemory>, CudaError>,
    /// Where the window begins; the other ranks' begin elsewhere.
    pub address: u64,
    /// Its bytes; the other ranks' may have another length.
    pub len_bytes: u64,
}

/// How this rank's device reaches a rank's part of a window.
#[derive(Clone, Debug)]
pub enum Reach {
    /// In memory.
    Mapped {
        /// Where its part begins.
        address: u64,
        /// Its bytes.
        len_bytes: u64,
    },
    /// It is on another host.
    OtherHost,
    /// Not at all, and why.
    Refused(String),
}

/// A window: memory of every rank, as this rank's device addresses that of its host. Dropping it unmaps what it has mapped, and
/// frees nothing.
#[derive(Debug)]
pub struct Window {
    reach: Vec<Reach>,
    /// What was mapped for it, and this rank's own.
    memory: Arc<[Arc<dyn GpuMemory>]>,
}

/// What a rank says of its part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Part {
    /// Where it begins in the allocation.
    offset: u64,
    len_bytes: u64,
    /// The allocation, unless others cannot map it.
    memory: Option<MemoryInfo>,
    /// Why they cannot.
    why: String,
}

/// How a rank has mapped a symmetric window, for the others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mapping {
    /// Bytes of its own part.
    pub len_bytes: u64,
    /// [`Window::addresses`].
    pub addresses: Vec<u64>,
}

/// The most ranks of a window that each of them has mapped as a whole: those of one host.
const MAPPED_RANKS_MAX: usize = 1024;

impl Message for Mapping {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 32 + 10 * MAPPED_RANKS_MAX;

    fn is_sound(&self) -> bool {
        self.addresses.len() <= MAPPED_RANKS_MAX
    }
}

/// Bytes of the text that says why a rank's memory cannot be mapped.
const WHY_BYTES_MAX: usize = 400;

impl Message for Part {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 64 + MemoryInfo::BYTES_MAX + WHY_BYTES_MAX;

    fn is_sound(&self) -> bool {
        self.why.len() <= WHY_BYTES_MAX
    }
}

impl Window {
    /// Maps every rank's part where that is possible; a part that cannot be mapped is no error before it is used. All ranks of the
    /// communicator call it at the same time. Returns once every rank is done.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn connect(bootstrap: &Bootstrap, wanted: &WindowWanted<'_>) -> Result<Window, P2pError> {
        let WindowWanted { device, peers, settings, .. } = *wanted;
        let nothing = ArenaWanted { device, peers, settings, refused: &[], lens: &|_: &_, _| [0, 0] };
        let setup = ArenaSetup::gather(bootstrap, &nothing)?;
        let domains = setup.domains(setup.first_method());
        let showing = Showing { setup, domains };
        let own = showing.own(wanted);
        let (own, said) = split(own, |own| own.part.to_bytes());
        let blocks = agree(bootstrap, said)?;
        let parts = read_all(&blocks, |block| Part::from_bytes(block).ok())?;
        // After the vote every rank has an own part.
        let own = own.ok_or(P2pError::Malformed { peer: showing.setup.rank })?;
        let fds = showing.exchange(&own, &parts);
        if let Err(P2pError::Bootstrap(_)) = &fds {
            return Err(fds.err().unwrap_or(P2pError::Malformed { peer: showing.setup.rank }));
        }
        let window = showing.map(wanted, own.memory, &parts, fds);
        // What the ranks of this process show each other lives until all have looked.
        bootstrap.barrier()?;
        Ok(window)
    }

    /// How this rank's device reaches the part of `rank`.
    pub fn reach(&self, rank: Rank) -> Option<&Reach> {
        self.reach.get(rank.index())
    }

    /// Where this rank's device reaches every rank's part, in rank order; nothing if it does not reach all.
    pub fn addresses(&self) -> Vec<u64> {
        let address = |reach: &Reach| match reach {
            Reach::Mapped { address, .. } => Some(*address),
            _ => None,
        };
        self.reach.iter().map(address).collect::<Option<_>>().unwrap_or_default()
    }

    /// Can be upgraded as long as the window is there.
    pub(crate) fn alive(&self) -> Weak<[Arc<dyn GpuMemory>]> {
        Arc::downgrade(&self.memory)
    }
}

/// A window that is being made.
struct Showing<'a> {
    setup: ArenaSetup<'a>,
    domains: Domains,
}

/// This rank's part.
struct Own {
    part: Part,
    memory: Option<Arc<dyn GpuMemory>>,
    mailbox: Option<Mailbox>,
    /// What the mailbox sends.
    exported: Option<OwnedFd>,
}

impl Showing<'_> {
    fn own(&self, wanted: &WindowWanted<'_>) -> Result<Own, P2pError> {
        let ArenaSetup { rank, ref gpus, .. } = self.setup;
        let WindowWanted { address, len_bytes, .. } = *wanted;
        let (mut offset, mut memory, mut exported, mut why) = (0, None, None, String::new());
        match wanted.memory.clone().and_then(|found| self.describe(&*found).map(|told| (found, told))) {
            Ok((found, (info, fd))) => {
                offset = address - found.address();
                if offset.checked_add(len_bytes).is_some_and(|end| end <= found.len_bytes() as u64) {
                    show((self.setup.arena(), rank, Domain::Device), &found);
                    (memory, exported) = (Some((found, info)), fd);
                } else {
                    why = "it lies in several allocations".into();
                }
            }
            Err(error) => why = cut(&error.to_string(), WHY_BYTES_MAX).to_owned(),
        }
        let part = Part { offset, len_bytes, memory: memory.as_ref().map(|(_, info)| *info), why };
        let has_foreign = self.others(false).next().is_some();
        let mailbox = has_foreign.then(|| Mailbox::bind(gpus[rank.index()].token)).transpose();
        let mailbox = mailbox.map_err(|source| P2pError::Pass { rank, source })?;
        Ok(Own { part, memory: memory.map(|(memory, _)| memory), mailbox, exported })
    }

    /// What others need in order to map an allocation.
    fn describe(&self, memory: &dyn GpuMemory) -> Result<(MemoryInfo, Option<OwnedFd>), CudaError> {
        let exported = memory.export()?;
        let is_foreign = self.others(false).next().is_some();
        let handle = if exported.is_none() && is_foreign { memory.ipc_handle()? } else { None };
        let bytes = memory.len_bytes() as u64;
        let info = MemoryInfo {
            kind: if exported.is_some() { AllocationKind::Shareable } else { AllocationKind::Device },
            len_bytes: bytes,
            mapped_bytes: bytes,
            address: memory.address(),
            handle: handle.map(IpcHandleBytes),
        };
        Ok((info, exported))
    }

    /// The descriptors of peers in other processes, by rank.
    fn exchange(&self, own: &Own, parts: &[Part]) -> Result<Vec<Option<OwnedFd>>, P2pError> {
        let ArenaSetup { circle, rank, settings, .. } = self.setup;
        let mut fds: Vec<Option<OwnedFd>> = parts.iter().map(|_| None).collect();
        let Some(mailbox) = &own.mailbox else { return Ok(fds) };
        let passes = |peer: &Rank| {
            parts[peer.index()].memory.is_some_and(|memory| memory.kind == AllocationKind::Shareable)
        };
        let to: Vec<_> = own
            .exported
            .iter()
            .flat_map(|fd| self.others(false).map(|peer| (self.setup.party(peer), fd.as_fd())))
            .collect();
        let from: Vec<Party> = self.others(false).filter(passes).map(|peer| self.setup.party(peer)).collect();
        let got = mailbox.exchange(rank, &to, &from, settings.timeout, || circle.check_whole().is_ok());
        if got.is_err() {
            circle.check_whole()?;
        }
        for (party, fd) in from.iter().zip(got.map_err(|source| P2pError::Pass { rank, source })?) {
            fds[party.rank.index()] = Some(fd);
        }
        Ok(fds)
    }

    fn map(
        &self,
        wanted: &WindowWanted<'_>,
        own: Option<Arc<dyn GpuMemory>>,
        parts: &[Part],
        fds: Result<Vec<Option<OwnedFd>>, P2pError>,
    ) -> Window {
        let rank = self.setup.rank;
        let (mut fds, unpassed) = match fds {
            Ok(fds) => (fds, None),
            Err(error) => (parts.iter().map(|_| None).collect(), Some(error)),
        };
        let locals: Vec<Rank> = self.setup.locals(rank).collect();
        let mut memory: Vec<Arc<dyn GpuMemory>> = own.into_iter().collect();
        let reach = (0..).map(Rank).zip(parts).map(|(peer, part)| {
            let len_bytes = part.len_bytes;
            if peer == rank {
                return Reach::Mapped { address: wanted.address, len_bytes };
            }
            if !locals.contains(&peer) {
                return Reach::OtherHost;
            }
            let fd = fds[peer.index()].take();
            match self.open(peer, part, fd, unpassed.as_ref()) {
                Ok(opened) => {
                    let address = opened.address() + part.offset;
                    memory.push(opened);
                    Reach::Mapped { address, len_bytes }
                }
                Err(why) => Reach::Refused(why),
            }
        });
        let reach = reach.collect();
        Window { reach, memory: memory.into() }
    }

    /// A peer's allocation, mapped; or why it cannot be.
    fn open(
        &self,
        peer: Rank,
        part: &Part,
        fd: Option<OwnedFd>,
        unpassed: Option<&P2pError>,
    ) -> Result<Arc<dyn GpuMemory>, String> {
        let ArenaSetup { rank, device, .. } = self.setup;
        let Some(info) = &part.memory else { return Err(part.why.clone()) };
        if self.domains.of(rank, peer) == Domain::Host {
            return Err("their GPUs have no access to each other, or it is disabled".into());
        }
        let (arena, domain) = (self.setup.arena(), Domain::Device);
        let gpu = &self.setup.gpus[peer.index()];
        let name = self.setup.file(peer, Method::Host);
        let it = Peer { rank, device, peer, gpu, info, arena, domain, name };
        let is_shareable = info.kind == AllocationKind::Shareable;
        let opened = if !self.setup.same_process(rank, peer) {
            if let Some(error) = unpassed.filter(|_| is_shareable) {
                return Err(error.to_string());
            }
            it.open(fd)
        } else if is_shareable {
            // Its owner has mapped it for GPUs of its own choice.
            let exported = find((arena, peer, domain)).ok_or(P2pError::Gone { rank, peer });
            let refused = |source| P2pError::Device { rank, source };
            exported.and_then(|memory| it.open(memory.export().map_err(refused)?))
        } else {
            it.share()
        };
        opened.map_err(|error| error.to_string())
    }

    /// The other ranks of this host whose GPUs have access to this one's, in this process or in others.
    fn others(&self, in_process: bool) -> impl Iterator<Item = Rank> + '_ {
        let me = self.setup.rank;
        let is_other = move |peer: &Rank| *peer != me && self.domains.of(me, *peer) == Domain::Device;
        let locals = self.setup.locals(me).filter(is_other);
        locals.filter(move |peer| self.setup.same_process(me, *peer) == in_process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::IPC_HANDLE_BYTES;

    #[test]
    fn parts_round_trip_with_and_without_memory() {
        let handle = Some(IpcHandleBytes([7; IPC_HANDLE_BYTES]));
        let (kind, len_bytes) = (AllocationKind::Device, u64::MAX);
        let memory = MemoryInfo { kind, len_bytes, mapped_bytes: u64::MAX, address: u64::MAX, handle };
        for (memory, why) in [(Some(memory), String::new()), (None, "w".repeat(WHY_BYTES_MAX))] {
            let part = Part { offset: u64::MAX, len_bytes, memory, why };
            assert_eq!(Part::from_bytes(&part.to_bytes()), Ok(part));
        }
        let mapping = Mapping { len_bytes: u64::MAX, addresses: vec![u64::MAX; MAPPED_RANKS_MAX] };
        assert_eq!(Mapping::from_bytes(&mapping.to_bytes()), Ok(mapping));
        let long = Part { offset: 0, len_bytes: 1, memory: None, why: "w".repeat(WHY_BYTES_MAX + 1) };
        assert!(Part::from_bytes(&long.to_bytes()).is_err());
    }
}
