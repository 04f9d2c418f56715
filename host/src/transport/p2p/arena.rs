//! One piece of memory per rank, and everybody's address of it.

use super::card::Offer;
use super::descriptors::{Mailbox, Party};
use super::error::P2pError;
use super::home::{Home, P2pSettings};
use super::meeting::{Failed, Meeting, agree, read_all};
use super::own::{Memory, Wanted, show};
use super::reach::{Peer, Reach};
use crate::bootstrap::Bootstrap;
use crate::cuda::Device;
use crate::mem::{self, ShmFile, ShmName};
use crate::transport::PeerInfo;
use oxccl_shared::abi::Rank;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Memory of every rank of this host, reachable from this rank's device.
///
/// Kernels that use it must have ended, here and on the peers, before it is closed or dropped. Fields in this order: peers'
/// memory is unmapped before the own is freed.
#[derive(Debug)]
pub struct Arena {
    rank: u32,
    reached: Vec<Option<Reach>>,
    own: Arc<Memory>,
    homes: Vec<Home>,
    /// Whether the driver relies on nobody freeing memory that another process has mapped.
    frees_after_all: bool,
}

impl Arena {
    /// Makes `len_bytes[rank]` bytes of zeros for this rank, and maps those of the others of its host. All ranks of the
    /// communicator call it at the same time with equal settings and lengths; `peers` is what they gathered about each
    /// other. Returns once every rank has mapped everything.
    ///
    /// # Errors
    /// The same step fails on every rank: on the guilty one with its own error, elsewhere with [`P2pError::PeerFailed`].
    /// Nothing stays allocated and no file is left.
    pub fn connect(
        bootstrap: &Bootstrap,
        device: &Device,
        peers: &[PeerInfo],
        settings: &P2pSettings,
        len_bytes: &[usize],
    ) -> Result<Arena, P2pError> {
        let meeting = Meeting::gather(bootstrap, device, peers, settings, len_bytes.len())?;
        let mut method = meeting.first_method();
        loop {
            let Failed { error, may_retry } =
                match Attempt::new(&meeting, meeting.homes(method), len_bytes).run() {
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

    /// The memory of `rank` as this rank's device addresses it: 256-byte aligned. `None` for a rank of another host.
    pub fn base(&self, rank: u32) -> Option<u64> {
        if rank == self.rank {
            return Some(self.own());
        }
        self.reached.get(rank as usize)?.as_ref().map(Reach::address)
    }

    /// This rank's memory, as its device addresses it.
    pub fn own(&self) -> u64 {
        self.own.address()
    }

    /// Where the memory of `rank` lies.
    ///
    /// # Panics
    /// If the communicator has no such rank.
    pub fn home(&self, rank: u32) -> Home {
        self.homes[rank as usize]
    }

    /// Unmaps and frees in the order that the driver asks for. Every rank calls it, in the order of the bootstrap's other
    /// collectives. If a rank has died or left, it does not wait for it.
    pub fn close(self, bootstrap: &Bootstrap) {
        let Arena { reached, own, frees_after_all, .. } = self;
        drop(reached);
        if frees_after_all {
            // Whoever is gone has nothing mapped any more.
            let _ = bootstrap.barrier();
        }
        drop(own);
    }
}

/// One way to share memory, tried.
struct Attempt<'a> {
    meeting: &'a Meeting<'a>,
    homes: Vec<Home>,
    len_bytes: &'a [usize],
}

/// This rank's part, ready for the others.
struct Made {
    memory: Arc<Memory>,
    offer: Offer,
    mailbox: Option<Mailbox>,
    /// Others can open it as long as this lives.
    _file: Option<ShmFile>,
}

impl<'a> Attempt<'a> {
    fn new(meeting: &'a Meeting<'a>, homes: Vec<Home>, len_bytes: &'a [usize]) -> Self {
        Attempt { meeting, homes, len_bytes }
    }

    fn run(self) -> Result<Arena, Failed> {
        let Meeting { bootstrap, rank, .. } = *self.meeting;
        let (made, said) = split(self.make(), |made| made.offer.to_bytes());
        let offers = agree(bootstrap, said).inspect_err(|_| self.forget_files())?;
        let opened = read_all(&offers, Offer::from_bytes)
            .and_then(|offers| made.as_ref().map_or_else(|| Ok(Vec::new()), |made| self.open(made, &offers)));
        let (reached, said) = split(opened, |_| Vec::new());
        let agreed = agree(bootstrap, said);
        // All have opened every file, or have failed: either way no name is needed any more. All names, because a rank that
        // was killed leaves its own.
        self.forget_files();
        agreed?;
        let (Some(Made { memory, .. }), Some(reached)) = (made, reached) else {
            unreachable!("all agreed that this rank succeeded")
        };
        let frees_after_all = self.frees_after_all();
        Ok(Arena { rank, reached, own: memory, homes: self.homes, frees_after_all })
    }

    fn make(&self) -> Result<Made, P2pError> {
        let Meeting { rank, device, .. } = *self.meeting;
        let mut also: Vec<u32> = self.others(true).map(|peer| self.ordinal(peer)).collect();
        also.sort_unstable();
        also.dedup();
        also.retain(|ordinal| *ordinal != device.ordinal());
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
        let (memory, file) = Memory::new(&wanted)?;
        let offer = memory.offer(&wanted)?;
        let memory = Arc::new(memory);
        show((arena, rank), &memory);
        let passes = self.others(false).any(|peer| self.passes(peer) || self.passes(rank));
        let mailbox = passes.then(|| Mailbox::bind(self.meeting.cards[rank as usize].token)).transpose();
        let mailbox = mailbox.map_err(|source| P2pError::Pass { rank, source })?;
        Ok(Made { memory, offer, mailbox, _file: file })
    }

    fn open(&self, made: &Made, offers: &[Offer]) -> Result<Vec<Option<Reach>>, P2pError> {
        let Meeting { rank, device, .. } = *self.meeting;
        for peer in self.others(true).chain(self.others(false)) {
            let (found, expected) = (offers[peer as usize].len_bytes, self.len_bytes[peer as usize] as u64);
            if found != expected {
                return Err(P2pError::Length { rank, peer, expected, found });
            }
            if offers[peer as usize].home != self.homes[peer as usize] {
                return Err(P2pError::Malformed { peer });
            }
        }
        let mut fds = self.exchange(made)?;
        let mut reached: Vec<Option<Reach>> = offers.iter().map(|_| None).collect();
        for (is_same_process, peer) in
            self.others(true).map(|peer| (true, peer)).chain(self.others(false).map(|peer| (false, peer)))
        {
            let card = &self.meeting.cards[peer as usize];
            let offer = &offers[peer as usize];
            let it = Peer { rank, device, peer, card, offer, arena: self.meeting.arena() };
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

    /// The other ranks of this host, in this process or in others.
    fn others(&self, in_process: bool) -> impl Iterator<Item = u32> + '_ {
        let me = self.meeting.rank;
        self.meeting
            .locals(me)
            .filter(move |peer| *peer != me && self.meeting.same_process(me, *peer) == in_process)
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
        let is_foreign = |a: u32| self.meeting.locals(a).any(|b| !self.meeting.same_process(a, b));
        ranks.zip(&self.homes).any(|(rank, home)| *home == Home::Device && is_foreign(rank))
    }

    /// Removes the files that any rank of this host may have left.
    fn forget_files(&self) {
        let Meeting { rank, .. } = *self.meeting;
        let files = self.meeting.locals(rank).filter(|peer| self.homes[*peer as usize] == Home::HostFile);
        mem::unlink_all(self.meeting.arena(), files.map(Rank));
    }
}

/// A result as what there is, and what is said of it.
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
