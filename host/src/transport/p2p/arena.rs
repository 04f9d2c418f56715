//! Memory of all ranks of a host: one allocation per rank, or one on its GPU and one on the host, and the addresses
//! of all of them.

use super::card::Offer;
use super::descriptors::{Mailbox, Party};
use super::error::P2pError;
use super::home::{Home, Method, P2pSettings};
use super::meeting::{Failed, Meeting, agree, read_all};
use super::own::{OwnMemory, Wanted, show};
use super::reach::Peer;
use super::sides::{Side, Sides};
use crate::bootstrap::Bootstrap;
use crate::gpu::{Gpu, GpuMemory};
use crate::mem::{self, ShmFile, ShmName};
use crate::transport::PeerInfo;
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What to connect.
#[derive(Clone, Copy)]
pub struct ArenaWanted<'a> {
    /// This rank's device.
    pub device: &'a dyn Gpu,
    /// Peer info of all ranks.
    pub peers: &'a [PeerInfo],
    /// The user's settings; equal on all ranks.
    pub settings: &'a P2pSettings,
    /// Ranks of this host whose GPU memory must not be used, although it could be.
    pub refused: &'a [u32],
    /// Bytes of a rank's memories in the order of [`Side::ALL`], given the domain of each pair; equal on all ranks.
    pub lens: &'a dyn Fn(&Sides, u32) -> [usize; 2],
}

/// Memory of every rank of this host, accessible from this rank's device: GPU memory for pairs whose GPUs have peer
/// access, host memory for the others.
///
/// Kernels that use it must have ended, here and on the peers, before it is closed or dropped.
#[derive(Debug)]
pub struct Arena {
    rank: u32,
    sides: Sides,
    /// In the order of [`Side::ALL`].
    parts: [Part; 2],
    /// Whether the driver forbids freeing memory that another process has mapped.
    frees_after_all: bool,
}

/// All ranks' memory in one domain. Field order matters: peers' memory is unmapped before our own is freed.
#[derive(Debug, Default)]
struct Part {
    homes: Vec<Home>,
    reached: Vec<Option<Arc<dyn GpuMemory>>>,
    own: Option<Arc<dyn GpuMemory>>,
}

impl Arena {
    /// Allocates zeroed memory for this rank, and maps that of the ranks that share it. All ranks of the communicator
    /// call it at the same time. Returns once every rank has mapped everything.
    ///
    /// # Errors
    /// The same step fails on every rank: on the rank at fault with its own error, elsewhere with
    /// [`P2pError::PeerFailed`]. Nothing stays allocated and no file is left.
    pub fn connect(bootstrap: &Bootstrap, wanted: &ArenaWanted<'_>) -> Result<Arena, P2pError> {
        let meeting = Meeting::gather(bootstrap, wanted)?;
        let mut method = meeting.first_method();
        loop {
            let Failed { error, may_retry } = match Arena::by(&meeting, method, wanted) {
                Ok(arena) => return Ok(arena),
                Err(failed) => failed,
            };
            match meeting.method_after(method).filter(|_| may_retry) {
                None => return Err(*error),
                Some(next) => {
                    tracing::warn!(rank = meeting.rank, %error, ?method, ?next, "GPU memory is shared in another way");
                    method = next;
                }
            }
        }
    }

    /// Host memory first: it can be freed at any time if the devices' fails.
    fn by(meeting: &Meeting<'_>, method: Method, wanted: &ArenaWanted<'_>) -> Result<Arena, Failed> {
        let sides = meeting.sides(method);
        let attempt = |side: Side| {
            let lens = (0..meeting.peers.len() as u32).map(|rank| (wanted.lens)(&sides, rank)[side as usize]);
            Attempt::new(meeting, method, side, &sides, lens.collect())
        };
        let [device, host] = Side::ALL.map(attempt);
        let frees_after_all = device.frees_after_all();
        let host = host.run()?;
        let device = device.run()?;
        if !sides.on_host().is_empty() {
            tracing::debug!(rank = meeting.rank, pairs = ?sides.on_host(), "these pairs of ranks meet in memory of the host");
        }
        Ok(Arena { rank: meeting.rank, sides, parts: [device, host], frees_after_all })
    }

    /// The memory of `rank` in that domain, as this rank's device addresses it: 256-byte aligned. `None` for a rank
    /// that shares none with this one there, such as one of another host.
    pub fn base(&self, rank: u32, side: Side) -> Option<u64> {
        let Part { reached, own, .. } = &self.parts[side as usize];
        if rank == self.rank {
            return own.as_ref().map(|own| own.address());
        }
        reached.get(rank as usize)?.as_ref().map(|memory| memory.address())
    }

    /// The kind of the memory of `rank` in that domain, if it has any.
    pub fn home(&self, rank: u32, side: Side) -> Option<Home> {
        self.parts[side as usize].homes.get(rank as usize).copied()
    }

    /// The domain of every pair of ranks.
    pub fn sides(&self) -> &Sides {
        &self.sides
    }

    /// Unmaps and frees in the order that the driver requires. Every rank calls it, in the order of the bootstrap's
    /// other collectives. It does not wait for ranks that have died or left.
    pub fn close(self, bootstrap: &Bootstrap) {
        let Arena { parts: [device, host], frees_after_all, .. } = self;
        drop((host, device.reached));
        if frees_after_all {
            // A rank that is gone has nothing mapped any more.
            let _ = bootstrap.barrier();
        }
        drop(device.own);
    }
}

/// An attempt to allocate one domain with one method.
struct Attempt<'a> {
    meeting: &'a Meeting<'a>,
    side: Side,
    sides: &'a Sides,
    homes: Vec<Home>,
    len_bytes: Vec<usize>,
}

/// This rank's memory, ready to be mapped by the others.
struct Made {
    memory: Arc<dyn GpuMemory>,
    offer: Offer,
    mailbox: Option<Mailbox>,
    /// Others can open it as long as this lives.
    _file: Option<ShmFile>,
}

impl<'a> Attempt<'a> {
    fn new(
        meeting: &'a Meeting<'a>,
        method: Method,
        side: Side,
        sides: &'a Sides,
        len_bytes: Vec<usize>,
    ) -> Self {
        Attempt { meeting, side, sides, homes: meeting.homes(method, side, sides), len_bytes }
    }

    /// Whether a rank has memory in this domain, that is, shares it with another rank.
    fn has_memory(&self, rank: u32) -> bool {
        self.len_bytes[rank as usize] > 0 || self.peers_of(rank).next().is_some()
    }

    fn run(self) -> Result<Part, Failed> {
        let Meeting { bootstrap, rank, .. } = *self.meeting;
        if !(0..self.homes.len() as u32).any(|rank| self.has_memory(rank)) {
            return Ok(Part::default());
        }
        let made = if self.has_memory(rank) { self.make().map(Some) } else { Ok(None) };
        let (made, said) =
            split(made, |made| made.as_ref().map_or_else(Vec::new, |made| made.offer.to_bytes()));
        let made = made.flatten();
        let offers = agree(bootstrap, said).inspect_err(|_| self.forget_files())?;
        let opened = read_all(&offers, |offer| match offer {
            [] => Some(None),
            offer => Offer::from_bytes(offer).map(Some).ok(),
        })
        .and_then(|offers| made.as_ref().map_or_else(|| Ok(Vec::new()), |made| self.open(made, &offers)));
        let (reached, said) = split(opened, |_| Vec::new());
        let agreed = agree(bootstrap, said);
        // All have opened every file, or have failed: no name is needed any more. Remove all names, because a rank
        // that was killed leaves its own.
        self.forget_files();
        agreed?;
        let own = made.map(|made| made.memory);
        Ok(Part { homes: self.homes, reached: reached.unwrap_or_default(), own })
    }

    fn make(&self) -> Result<Made, P2pError> {
        let Meeting { rank, device, .. } = *self.meeting;
        let mut also: Vec<u32> = self.others(true).map(|peer| self.ordinal(peer)).collect();
        also.sort_unstable();
        also.dedup();
        also.retain(|ordinal| *ordinal != device.id().ordinal);
        let arena = self.meeting.arena();
        let name = ShmName::new(arena, Rank(rank));
        let wanted = Wanted {
            rank,
            device,
            home: self.homes[rank as usize],
            len_bytes: self.len_bytes[rank as usize],
            also: &also,
            name: &name,
            is_foreign: self.others(false).next().is_some(),
        };
        if wanted.home == Home::HostFile {
            mem::sweep_stale();
        }
        let OwnMemory { memory, file } = OwnMemory::new(&wanted)?;
        let offer = wanted.offer(&*memory)?;
        show((arena, rank, self.side), &memory);
        let passes = self.others(false).any(|peer| self.passes(peer) || self.passes(rank));
        let mailbox = passes.then(|| Mailbox::bind(self.meeting.cards[rank as usize].token)).transpose();
        let mailbox = mailbox.map_err(|source| P2pError::Pass { rank, source })?;
        Ok(Made { memory, offer, mailbox, _file: file })
    }

    fn open(
        &self,
        made: &Made,
        offers: &[Option<Offer>],
    ) -> Result<Vec<Option<Arc<dyn GpuMemory>>>, P2pError> {
        let Meeting { rank, device, .. } = *self.meeting;
        for peer in self.peers_of(rank) {
            let offer = offers[peer as usize].ok_or(P2pError::Malformed { peer })?;
            let (found, expected) = (offer.len_bytes, self.len_bytes[peer as usize] as u64);
            if found != expected {
                return Err(P2pError::Length { rank, peer, expected, found });
            }
            if offer.home != self.homes[peer as usize] {
                return Err(P2pError::Malformed { peer });
            }
        }
        let mut fds = self.exchange(made)?;
        let mut reached: Vec<Option<Arc<dyn GpuMemory>>> = offers.iter().map(|_| None).collect();
        for peer in self.others(true).chain(self.others(false)) {
            let Some(offer) = &offers[peer as usize] else { continue };
            let card = &self.meeting.cards[peer as usize];
            let arena = self.meeting.arena();
            let it = Peer { rank, device, peer, card, offer, arena, side: self.side };
            let is_same_process = self.meeting.same_process(rank, peer);
            let reach = if is_same_process { it.share() } else { it.open(fds[peer as usize].take()) };
            reached[peer as usize] = Some(reach?);
        }
        Ok(reached)
    }

    /// The descriptors of peers in other processes, by rank.
    fn exchange(&self, made: &Made) -> Result<Vec<Option<OwnedFd>>, P2pError> {
        let Meeting { rank, settings, .. } = *self.meeting;
        let mut fds: Vec<Option<OwnedFd>> = self.homes.iter().map(|_| None).collect();
        let Some(mailbox) = &made.mailbox else { return Ok(fds) };
        let own = made.memory.export().map_err(|source| P2pError::Device { rank, source })?;
        let to: Vec<_> =
            own.iter().flat_map(|fd| self.others(false).map(|peer| (self.party(peer), fd.as_fd()))).collect();
        let from: Vec<Party> =
            self.others(false).filter(|peer| self.passes(*peer)).map(|peer| self.party(peer)).collect();
        let got = mailbox.exchange(rank, &to, &from, settings.timeout);
        let got = got.map_err(|source| P2pError::Pass { rank, source })?;
        for (party, fd) in from.iter().zip(got) {
            fds[party.rank as usize] = Some(fd);
        }
        Ok(fds)
    }

    /// The ranks that share memory with `rank` in this domain.
    fn peers_of(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        let locals = self.meeting.locals(rank);
        locals.filter(move |peer| *peer != rank && self.sides.of(rank, *peer) == self.side)
    }

    /// Those that share memory with this rank, in this process or in others.
    fn others(&self, in_process: bool) -> impl Iterator<Item = u32> + '_ {
        let me = self.meeting.rank;
        self.peers_of(me).filter(move |peer| self.meeting.same_process(me, *peer) == in_process)
    }

    /// Whether a rank's memory is passed to other processes as a descriptor.
    fn passes(&self, rank: u32) -> bool {
        self.homes[rank as usize] == Home::Shareable
    }

    fn ordinal(&self, rank: u32) -> u32 {
        self.meeting.cards[rank as usize].device.ordinal
    }

    fn party(&self, rank: u32) -> Party {
        let Meeting { cards, peers, rank: me, .. } = self.meeting;
        let (card, mine) = (&cards[rank as usize], &cards[*me as usize]);
        let alike = card.pid_namespace == mine.pid_namespace && card.pid_namespace != 0;
        Party { rank, token: card.token, pid: alike.then_some(peers[rank as usize].pid) }
    }

    /// Whether any rank of any host has memory that must not be freed while another process has it mapped.
    fn frees_after_all(&self) -> bool {
        let ranks = 0..self.homes.len() as u32;
        let is_foreign = |a: u32| self.peers_of(a).any(|b| !self.meeting.same_process(a, b));
        ranks.zip(&self.homes).any(|(rank, home)| *home == Home::Device && is_foreign(rank))
    }

    /// Removes the files that any rank of this host may have left.
    fn forget_files(&self) {
        let Meeting { rank, .. } = *self.meeting;
        let files = self.meeting.locals(rank).filter(|peer| self.homes[*peer as usize] == Home::HostFile);
        mem::unlink_all(self.meeting.arena(), files.map(Rank));
    }
}

/// Splits a result into its value and its message for the other ranks.
fn split<T>(
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
