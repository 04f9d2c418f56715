//! The facts that all ranks gather before memory is allocated, and their vote on success.

use super::allocation::{Access, AllocationKind, Method, P2pSettings, Pair, allocation_kind, domain};
use super::circle::Circle;
use super::descriptors::Party;
use super::domains::{Domain, Domains};
use super::error::P2pError;
use super::info::{AccessRow, GpuInfo};
use super::wanted::{Agreed, ArenaWanted};
use crate::bootstrap::{Agreement, Bootstrap};
use crate::gpu::{CudaError, Gpu};
use crate::mem::ShmName;
use crate::transport::PeerInfo;
use crate::transport::peer::random;
use crate::wire::{Message, digest};
use oxccl_shared::abi::Rank;

/// The ranks of an arena, their GPUs, and the access between them.
pub(super) struct ArenaSetup<'a> {
    pub circle: &'a dyn Circle,
    pub rank: Rank,
    pub device: &'a dyn Gpu,
    pub settings: &'a P2pSettings,
    pub peers: &'a [PeerInfo],
    pub gpus: Vec<GpuInfo>,
    /// Per rank, its access to the ranks of its host, in their order.
    access: Vec<Vec<Access>>,
    /// The ranks that take part; all, if none are named.
    members: Option<&'a [Rank]>,
}

/// An error, and whether all ranks should try another method.
pub(super) struct Failed {
    pub error: Box<P2pError>,
    pub may_retry: bool,
}

impl From<Failed> for P2pError {
    fn from(failed: Failed) -> P2pError {
        *failed.error
    }
}

impl<'a> ArenaSetup<'a> {
    /// Gathers the info and access of all ranks.
    pub fn gather(bootstrap: &'a Bootstrap, wanted: &ArenaWanted<'a>) -> Result<ArenaSetup<'a>, P2pError> {
        let ArenaWanted { device, peers, settings, refused: far, .. } = *wanted;
        let rank = bootstrap.rank();
        let refused = |source| P2pError::Device { rank, source };
        let blocks = agree(bootstrap, gpu_info(device).map_err(refused).map(|gpu| gpu.to_bytes()))?;
        let gpus = read_all(&blocks, |block| GpuInfo::from_bytes(block).ok())?;
        let (circle, members) = (bootstrap, None);
        let mut setup =
            ArenaSetup { circle, rank, device, settings, peers, gpus, access: Vec::new(), members };
        let access_of = |peer: Rank| match far.contains(&peer) {
            true => Ok(Access::No),
            false => access(device, &setup.gpus[peer.index()]),
        };
        let mine: Result<Vec<Access>, CudaError> = setup.locals(rank).map(access_of).collect();
        let blocks = agree(bootstrap, mine.map(|row| AccessRow(row).to_bytes()).map_err(refused))?;
        for (owner, block) in (0..).map(Rank).zip(&blocks) {
            let malformed = P2pError::Malformed { peer: owner };
            let row = AccessRow::from_bytes(block).ok().map(|AccessRow(row)| row);
            let row = row.filter(|row| row.len() == setup.locals(owner).count());
            setup.access.push(row.ok_or(malformed)?);
        }
        Ok(setup)
    }

    /// The same facts for a further arena of `members`, which all give it the same number, one that no other has.
    pub fn further(
        circle: &'a dyn Circle,
        rank: Rank,
        device: &'a dyn Gpu,
        agreed: &'a Agreed,
        (members, number): (&'a [Rank], u64),
    ) -> ArenaSetup<'a> {
        let Agreed { peers, settings, gpus, access, .. } = agreed;
        let token = |gpu: &GpuInfo| GpuInfo { token: digest(&(gpu.token, number)), ..*gpu };
        let (gpus, access, members) = (gpus.iter().map(token).collect(), access.clone(), Some(members));
        ArenaSetup { circle, rank, device, settings, peers, gpus, access, members }
    }

    /// What further arenas need to know.
    pub fn agreed(&self, method: Method) -> Agreed {
        Agreed {
            peers: self.peers.to_vec(),
            settings: *self.settings,
            gpus: self.gpus.clone(),
            access: self.access.clone(),
            method,
        }
    }

    /// The ranks of `rank`'s host, itself included.
    fn of_host(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        let host = self.peers[rank.index()].host;
        (0..self.peers.len() as u32).map(Rank).filter(move |peer| self.peers[peer.index()].host == host)
    }

    /// Those of them that take part.
    pub fn locals(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        let takes_part = |rank: Rank| self.members.is_none_or(|members| members.contains(&rank));
        self.of_host(rank).filter(move |peer| takes_part(rank) && takes_part(*peer))
    }

    /// Whether both are threads of one process.
    pub fn same_process(&self, a: Rank, b: Rank) -> bool {
        let (a, b) = (&self.peers[a.index()], &self.peers[b.index()]);
        (a.host, a.process) == (b.host, b.process)
    }

    /// The arena's identity: random, and known to its ranks only.
    pub fn arena(&self) -> u64 {
        self.gpus[0].token
    }

    /// The file of a rank's memory on the host. Each attempt has names of its own: those of the one before were seen.
    pub fn file(&self, rank: Rank, method: Method) -> ShmName {
        let attempt = self.arena().wrapping_add(method as u64);
        ShmName::of(self.peers[rank.index()].files, attempt, rank)
    }

    /// The first method to try.
    pub fn first_method(&self) -> Method {
        Method::first(self.settings, self.gpus.iter().all(|gpu| gpu.exports_fds))
    }

    /// The next method after `method` that would change anything.
    pub fn method_after(&self, method: Method) -> Option<Method> {
        let ways = |method| {
            let domains = self.domains(method);
            (Domain::ALL.map(|domain| self.kinds(method, domain, &domains)), domains)
        };
        let now = ways(method);
        std::iter::successors(method.next(), |method| method.next()).find(|next| ways(*next) != now)
    }

    /// The memory domain of every pair of ranks of a host; the same on all ranks.
    pub fn domains(&self, method: Method) -> Domains {
        let ranks = (0..self.peers.len() as u32).map(Rank);
        let pairs = ranks.flat_map(|a| self.of_host(a).filter(move |b| *b > a).map(move |b| (a, b)));
        Domains::new(pairs.filter(|(a, b)| {
            let (there, back) = (self.access_of(*a, *b), self.access_of(*b, *a));
            domain(self.settings, method, &Pair { there, back }) == Domain::Host
        }))
    }

    /// The kind of every rank's memory in that domain; the same on all ranks.
    pub fn kinds(&self, method: Method, domain: Domain, domains: &Domains) -> Vec<AllocationKind> {
        let is_foreign = |owner: Rank| {
            let mut there =
                self.locals(owner).filter(|peer| *peer != owner && domains.of(owner, *peer) == domain);
            there.any(|peer| !self.same_process(owner, peer))
        };
        (0..self.peers.len() as u32)
            .map(Rank)
            .map(|owner| allocation_kind(domain, method, is_foreign(owner)))
            .collect()
    }

    /// The other end of an exchange of descriptors with `rank`.
    pub fn party(&self, rank: Rank) -> Party {
        let ArenaSetup { gpus, peers, rank: me, .. } = self;
        let (gpu, mine) = (&gpus[rank.index()], &gpus[me.index()]);
        let alike = gpu.pid_namespace == mine.pid_namespace && gpu.pid_namespace != 0;
        Party { rank, token: gpu.token, pid: alike.then_some(peers[rank.index()].pid) }
    }

    fn access_of(&self, from: Rank, to: Rank) -> Access {
        let at = self.of_host(from).position(|peer| peer == to);
        at.map_or(Access::No, |at| self.access[from.index()][at])
    }
}

/// A vote: every rank learns whether every rank succeeded, with its message. If one failed, all fail: that one with
/// its own error, the others with one that names it.
pub(super) fn agree(circle: &dyn Circle, mine: Result<Vec<u8>, P2pError>) -> Result<Vec<Vec<u8>>, Failed> {
    let agreed = circle.agree(mine.as_ref().map(|bytes| &bytes[..]));
    match agreed.map_err(|error| Failed { error: Box::new(error.into()), may_retry: false })? {
        Agreement::All(blocks) => Ok(blocks),
        Agreement::Failed { peer, why, may_retry } => {
            let error = mine.err().unwrap_or(P2pError::PeerFailed { peer, why });
            Err(Failed { error: Box::new(error), may_retry })
        }
    }
}

/// Decodes every rank's block.
pub(super) fn read_all<T>(blocks: &[Vec<u8>], read: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>, P2pError> {
    let read = |(peer, block): (Rank, &Vec<u8>)| read(block).ok_or(P2pError::Malformed { peer });
    (0..).map(Rank).zip(blocks).map(read).collect()
}

fn gpu_info(device: &dyn Gpu) -> Result<GpuInfo, CudaError> {
    Ok(GpuInfo {
        uuid: device.uuid(),
        device: device.id(),
        exports_fds: device.exports_fds()?,
        pid_namespace: rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino),
        token: random(),
    })
}

fn access(device: &dyn Gpu, other: &GpuInfo) -> Result<Access, CudaError> {
    Ok(match device.can_access(&other.uuid)? {
        None => Access::Hidden,
        Some(true) => Access::Yes,
        Some(false) => Access::No,
    })
}
