//! Memory of all ranks of a host: one allocation per rank, or one on its GPU and one on the host, and the addresses
//! of all of them.

use super::allocation::{AllocationKind, Method};
use super::circle::Circle;
use super::descriptors::{Mailbox, Party, PassError};
use super::domains::{Domain, Domains};
use super::error::P2pError;
use super::info::MemoryInfo;
use super::own::{OwnMemory, Wanted, show};
use super::reach::Peer;
use super::setup::{ArenaSetup, Failed, agree, read_all};
use super::wanted::{Agreed, ArenaWanted, FurtherWanted};
use crate::bootstrap::Bootstrap;
use crate::gpu::GpuMemory;
use crate::mem::{self, ShmFile};
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Memory of every rank of this host, accessible from this rank's device: GPU memory for pairs whose GPUs have peer
/// access, host memory for the others.
///
/// Kernels that use it must have ended, here and on the peers, before it is closed or dropped.
#[derive(Debug)]
pub struct Arena {
    rank: Rank,
    domains: Domains,
    /// In the order of [`Domain::ALL`].
    parts: [Part; 2],
    /// Whether the driver forbids freeing memory that another process has mapped.
    frees_after_all: bool,
}

/// All ranks' memory in one domain. Field order matters: peers' memory is unmapped before our own is freed.
#[derive(Debug, Default)]
struct Part {
    kinds: Vec<AllocationKind>,
    reached: Vec<Option<Arc<dyn GpuMemory>>>,
    own: Option<Arc<dyn GpuMemory>>,
}

impl Arena {
    /// Allocates zeroed memory for this rank, and maps that of the ranks that share it. All ranks of the communicator
    /// call it at the same time. Returns once every rank has mapped everything.
    ///
    /// # Errors
    /// The same step fails on every rank: on the rank at fault with its own error, elsewhere with [`P2pError::PeerFailed`] or, if that
    /// rank aborted, [`P2pError::Bootstrap`]. Nothing stays allocated and no file is left.
    pub fn connect(bootstrap: &Bootstrap, wanted: &ArenaWanted<'_>) -> Result<Arena, P2pError> {
        Arena::connect_first(bootstrap, wanted).map(|(arena, _)| arena)
    }

    /// The same, with what further arenas need to know.
    ///
    /// # Errors
    /// As there.
    pub fn connect_first(
        bootstrap: &Bootstrap,
        wanted: &ArenaWanted<'_>,
    ) -> Result<(Arena, Agreed), P2pError> {
        let setup = ArenaSetup::gather(bootstrap, wanted)?;
        let mut method = setup.first_method();
        loop {
            let Failed { error, may_retry } = match Arena::by(&setup, method, wanted.lens) {
                Ok(arena) => return Ok((arena, setup.agreed(method))),
                Err(failed) => failed,
            };
            match setup.method_after(method).filter(|_| may_retry) {
                None => return Err(*error),
                Some(next) => {
                    tracing::warn!(rank = %setup.rank, %error, ?method, ?next, "GPU memory is shared in another way");
                    method = next;
                }
            }
        }
    }

    /// A further arena, by the method of the first. Its members call it at the same time, from any threads.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(crate) fn connect_further(
        circle: &dyn Circle,
        wanted: &FurtherWanted<'_>,
    ) -> Result<Arena, P2pError> {
        let FurtherWanted { rank, device, agreed, members, lens } = *wanted;
        let setup = ArenaSetup::further(circle, rank, device, agreed, members);
        Ok(Arena::by(&setup, agreed.method, lens)?)
    }

    /// Host memory first: it can be freed at any time if the devices' fails.
    fn by(
        setup: &ArenaSetup<'_>,
        method: Method,
        lens: &dyn Fn(&Domains, Rank) -> [usize; 2],
    ) -> Result<Arena, Failed> {
        let domains = setup.domains(method);
        let attempt = |domain: Domain| {
            let lens =
                (0..setup.peers.len() as u32).map(Rank).map(|rank| lens(&domains, rank)[domain as usize]);
            Attempt::new(setup, method, domain, &domains, lens.collect())
        };
        let [device, host] = Domain::ALL.map(attempt);
        let frees_after_all = device.frees_after_all();
        let host = host.run()?;
        let device = device.run()?;
        if !domains.on_host().is_empty() {
            tracing::debug!(rank = %setup.rank, pairs = ?domains.on_host(), "these pairs of ranks meet in memory of the host");
        }
        Ok(Arena { rank: setup.rank, domains, parts: [device, host], frees_after_all })
    }

    /// The memory of `rank` in that domain, as this rank's device addresses it: 256-byte aligned. `None` for a rank
    /// that shares none with this one there, such as one of another host.
    pub fn base(&self, rank: Rank, domain: Domain) -> Option<u64> {
        let Part { reached, own, .. } = &self.parts[domain as usize];
        if rank == self.rank {
            return own.as_ref().map(|own| own.address());
        }
        reached.get(rank.index())?.as_ref().map(|memory| memory.address())
    }

    /// The kind of the memory of `rank` in that domain, if it has any.
    pub fn allocation_kind(&self, rank: Rank, domain: Domain) -> Option<AllocationKind> {
        self.parts[domain as usize].kinds.get(rank.index()).copied()
    }

    /// The domain of every pair of ranks.
    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    /// As [`Self::close_all`], of one.
    pub fn close(self, bootstrap: &Bootstrap) {
        Arena::close_all(vec![self], bootstrap);
    }

    /// Unmaps and frees a rank's arenas, of which the first is all ranks', in the order that the driver requires. Every rank calls it, in
    /// the order of the bootstrap's other collectives. It does not wait for ranks that have died or left.
    pub fn close_all(arenas: Vec<Arena>, bootstrap: &Bootstrap) {
        // The same on all ranks: what follows the first uses its method.
        let frees_after_all = arenas.first().is_some_and(|first| first.frees_after_all);
        let unmap = |Arena { parts: [device, host], .. }: Arena| {
            drop((host, device.reached));
            device.own
        };
        let own: Vec<_> = arenas.into_iter().map(unmap).collect();
        if frees_after_all {
            // A rank that is gone has nothing mapped any more.
            let _ = bootstrap.barrier();
        }
        drop(own);
    }

    /// Bytes of this rank's memory, on its GPU and on the host.
    pub fn own_bytes(&self) -> usize {
        self.parts.iter().filter_map(|part| part.own.as_ref()).map(|own| own.len_bytes()).sum()
    }
}

/// An attempt to allocate one domain with one method.
struct Attempt<'a> {
    setup: &'a ArenaSetup<'a>,
    method: Method,
    domain: Domain,
    domains: &'a Domains,
    kinds: Vec<AllocationKind>,
    len_bytes: Vec<usize>,
}

/// This rank's memory, ready to be mapped by the others.
struct Made {
    memory: Arc<dyn GpuMemory>,
    info: MemoryInfo,
    mailbox: Option<Mailbox>,
    /// What the mailbox sends.
    exported: Option<OwnedFd>,
    /// Others can open it as long as this lives.
    _file: Option<ShmFile>,
}

impl<'a> Attempt<'a> {
    fn new(
        setup: &'a ArenaSetup<'a>,
        method: Method,
        domain: Domain,
        domains: &'a Domains,
        len_bytes: Vec<usize>,
    ) -> Self {
        Attempt { setup, method, domain, domains, kinds: setup.kinds(method, domain, domains), len_bytes }
    }

    /// Whether a rank has memory in this domain, that is, shares it with another rank.
    fn has_memory(&self, rank: Rank) -> bool {
        self.len_bytes[rank.index()] > 0 || self.peers_of(rank).next().is_some()
    }

    fn run(self) -> Result<Part, Failed> {
        let ArenaSetup { circle, rank, .. } = *self.setup;
        if !(0..self.kinds.len() as u32).map(Rank).any(|rank| self.has_memory(rank)) {
            return Ok(Part::default());
        }
        let made = if self.has_memory(rank) { self.make().map(Some) } else { Ok(None) };
        let (made, said) =
            split(made, |made| made.as_ref().map_or_else(Vec::new, |made| made.info.to_bytes()));
        let made = made.flatten();
        let infos = agree(circle, said).inspect_err(|_| self.forget_files())?;
        let opened = read_all(&infos, |info| match info {
            [] => Some(None),
            info => MemoryInfo::from_bytes(info).map(Some).ok(),
        })
        .and_then(|infos| made.as_ref().map_or_else(|| Ok(Vec::new()), |made| self.open(made, &infos)));
        if let Err(error) = &opened
            && error.ends_init()
        {
            // Others may wait for this rank's descriptor. If another method may help, ranks vote instead.
            circle.abort(&error.to_string());
            self.forget_files();
            return Err(Failed { error: Box::new(error.clone()), may_retry: false });
        }
        let (reached, said) = split(opened, |_| Vec::new());
        let agreed = agree(circle, said);
        // All have opened every file, or have failed: no name is needed any more. Remove all names, because a rank
        // that was killed leaves its own.
        self.forget_files();
        agreed?;
        let own = made.map(|made| made.memory);
        Ok(Part { kinds: self.kinds, reached: reached.unwrap_or_default(), own })
    }

    fn make(&self) -> Result<Made, P2pError> {
        let ArenaSetup { rank, device, .. } = *self.setup;
        let mut also: Vec<u32> = self.others(true).map(|peer| self.ordinal(peer)).collect();
        also.sort_unstable();
        also.dedup();
        also.retain(|ordinal| *ordinal != device.id().ordinal);
        let arena = self.setup.arena();
        let name = self.setup.file(rank, self.method);
        let wanted = Wanted {
            rank,
            device,
            kind: self.kinds[rank.index()],
            len_bytes: self.len_bytes[rank.index()],
            also: &also,
            name: &name,
            is_foreign: self.others(false).next().is_some(),
        };
        if wanted.kind == AllocationKind::HostFile {
            mem::sweep_stale();
        }
        let OwnMemory { memory, file } = OwnMemory::new(&wanted)?;
        let info = wanted.info(&*memory)?;
        show((arena, rank, self.domain), &memory);
        let passes = self.others(false).any(|peer| self.passes(peer) || self.passes(rank));
        let mailbox = passes.then(|| Mailbox::bind(self.setup.gpus[rank.index()].token)).transpose();
        let mailbox = mailbox.map_err(|source| P2pError::Pass { rank, source })?;
        // Before the vote, behind which others wait for it.
        let exported = mailbox.as_ref().map_or(Ok(None), |_| memory.export());
        let exported = exported.map_err(|source| P2pError::Device { rank, source })?;
        Ok(Made { memory, info, mailbox, exported, _file: file })
    }

    fn open(
        &self,
        made: &Made,
        infos: &[Option<MemoryInfo>],
    ) -> Result<Vec<Option<Arc<dyn GpuMemory>>>, P2pError> {
        let ArenaSetup { rank, device, .. } = *self.setup;
        for peer in self.peers_of(rank) {
            let info = infos[peer.index()].ok_or(P2pError::Malformed { peer })?;
            let (found, expected) = (info.len_bytes, self.len_bytes[peer.index()] as u64);
            if found != expected {
                return Err(P2pError::Length { rank, peer, expected, found });
            }
            if info.kind != self.kinds[peer.index()] {
                return Err(P2pError::Malformed { peer });
            }
        }
        let mut fds = self.exchange(made)?;
        let mut reached: Vec<Option<Arc<dyn GpuMemory>>> = infos.iter().map(|_| None).collect();
        for peer in self.others(true).chain(self.others(false)) {
            let Some(info) = &infos[peer.index()] else { continue };
            let gpu = &self.setup.gpus[peer.index()];
            let arena = self.setup.arena();
            let name = self.setup.file(peer, self.method);
            let it = Peer { rank, device, peer, gpu, info, arena, domain: self.domain, name };
            let is_same_process = self.setup.same_process(rank, peer);
            let reach = if is_same_process { it.share() } else { it.open(fds[peer.index()].take()) };
            reached[peer.index()] = Some(reach?);
        }
        Ok(reached)
    }

    /// The descriptors of peers in other processes, by rank.
    fn exchange(&self, made: &Made) -> Result<Vec<Option<OwnedFd>>, P2pError> {
        let ArenaSetup { circle, rank, settings, .. } = *self.setup;
        let mut fds: Vec<Option<OwnedFd>> = self.kinds.iter().map(|_| None).collect();
        let Some(mailbox) = &made.mailbox else { return Ok(fds) };
        let to: Vec<_> = made
            .exported
            .iter()
            .flat_map(|fd| self.others(false).map(|peer| (self.setup.party(peer), fd.as_fd())))
            .collect();
        let from: Vec<Party> =
            self.others(false).filter(|peer| self.passes(*peer)).map(|peer| self.setup.party(peer)).collect();
        let are_there = || circle.check_whole().is_ok();
        let got = mailbox.exchange(rank, &to, &from, settings.timeout, are_there);
        if matches!(got, Err(PassError::GivenUp)) {
            circle.check_whole()?;
        }
        let got = got.map_err(|source| P2pError::Pass { rank, source })?;
        for (party, fd) in from.iter().zip(got) {
            fds[party.rank.index()] = Some(fd);
        }
        Ok(fds)
    }

    /// The ranks that share memory with `rank` in this domain.
    fn peers_of(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        let locals = self.setup.locals(rank);
        locals.filter(move |peer| *peer != rank && self.domains.of(rank, *peer) == self.domain)
    }

    /// Those that share memory with this rank, in this process or in others.
    fn others(&self, in_process: bool) -> impl Iterator<Item = Rank> + '_ {
        let me = self.setup.rank;
        self.peers_of(me).filter(move |peer| self.setup.same_process(me, *peer) == in_process)
    }

    /// Whether a rank's memory is passed to other processes as a descriptor.
    fn passes(&self, rank: Rank) -> bool {
        self.kinds[rank.index()] == AllocationKind::Shareable
    }

    fn ordinal(&self, rank: Rank) -> u32 {
        self.setup.gpus[rank.index()].device.ordinal
    }

    /// Whether any rank of any host has memory that must not be freed while another process has it mapped.
    fn frees_after_all(&self) -> bool {
        let ranks = (0..self.kinds.len() as u32).map(Rank);
        let is_foreign = |a: Rank| self.peers_of(a).any(|b| !self.setup.same_process(a, b));
        ranks.zip(&self.kinds).any(|(rank, kind)| *kind == AllocationKind::Device && is_foreign(rank))
    }

    /// Removes the files that any rank of this host may have left.
    fn forget_files(&self) {
        let ArenaSetup { rank, .. } = *self.setup;
        let files =
            self.setup.locals(rank).filter(|peer| self.kinds[peer.index()] == AllocationKind::HostFile);
        mem::unlink_all(files.map(|peer| self.setup.file(peer, self.method)));
    }
}

/// Splits a result into its value and its message for the other ranks.
pub(super) fn split<T>(
    result: Result<T, P2pError>,
    say: impl Fn(&T) -> Vec<u8>,
) -> (Option<T>, Result<Vec<u8>, P2pError>) {
    match result {
        Ok(value) => {
            let said = say(&value);
            (Some(value), Ok(said))
        }
        Err(error) => (None, Err(error)),
    }
}
