//! What all ranks know of each other before memory is made, and how they agree on success.

use super::arena::ArenaWanted;
use super::card::{AccessRow, Card};
use super::error::P2pError;
use super::home::{Access, Home, Method, P2pSettings, Pair, home, side};
use super::sides::{Side, Sides};
use crate::bootstrap::{Agreement, Bootstrap};
use crate::gpu::{CudaError, Gpu};
use crate::transport::PeerInfo;
use crate::wire::Message;

/// The ranks of a communicator, their GPUs, and who reaches whose.
pub(super) struct Meeting<'a> {
    pub bootstrap: &'a Bootstrap,
    pub rank: u32,
    pub device: &'a dyn Gpu,
    pub settings: &'a P2pSettings,
    pub peers: &'a [PeerInfo],
    pub cards: Vec<Card>,
    /// Per rank, what it says of the ranks of its host, in their order.
    access: Vec<Vec<Access>>,
}

/// An error, and whether all ranks shall try another way.
pub(super) struct Failed {
    pub error: Box<P2pError>,
    pub may_retry: bool,
}

impl From<Failed> for P2pError {
    fn from(failed: Failed) -> P2pError {
        *failed.error
    }
}

impl<'a> Meeting<'a> {
    /// Gathers everybody's card and access.
    pub fn gather(bootstrap: &'a Bootstrap, wanted: &ArenaWanted<'a>) -> Result<Meeting<'a>, P2pError> {
        let ArenaWanted { device, peers, settings, refused: far, .. } = *wanted;
        let rank = bootstrap.rank().0;
        let refused = |source| P2pError::Device { rank, source };
        let blocks = agree(bootstrap, card(device).map_err(refused).map(|card| card.to_bytes()))?;
        let cards = read_all(&blocks, |block| Card::from_bytes(block).ok())?;
        let mut meeting = Meeting { bootstrap, rank, device, settings, peers, cards, access: Vec::new() };
        let access_of = |peer: u32| match far.contains(&peer) {
            true => Ok(Access::No),
            false => access(device, &meeting.cards[peer as usize]),
        };
        let mine: Result<Vec<Access>, CudaError> = meeting.locals(rank).map(access_of).collect();
        let blocks = agree(bootstrap, mine.map(|row| AccessRow(row).to_bytes()).map_err(refused))?;
        for (owner, block) in blocks.iter().enumerate() {
            let malformed = P2pError::Malformed { peer: owner as u32 };
            let row = AccessRow::from_bytes(block).ok().map(|AccessRow(row)| row);
            let row = row.filter(|row| row.len() == meeting.locals(owner as u32).count());
            meeting.access.push(row.ok_or(malformed)?);
        }
        Ok(meeting)
    }

    /// The ranks of `rank`'s host, itself included.
    pub fn locals(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        let host = self.peers[rank as usize].host;
        (0..self.peers.len() as u32).filter(move |peer| self.peers[*peer as usize].host == host)
    }

    /// Whether both are threads of one process.
    pub fn same_process(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.peers[a as usize], &self.peers[b as usize]);
        (a.host, a.process) == (b.host, b.process)
    }

    /// What names the arena: random, and known to its ranks only.
    pub fn arena(&self) -> u64 {
        self.cards[0].token
    }

    /// The first way to try.
    pub fn first_method(&self) -> Method {
        Method::first(self.settings, self.cards.iter().all(|card| card.exports_fds))
    }

    /// The next way after `method` that would change anything.
    pub fn method_after(&self, method: Method) -> Option<Method> {
        let ways = |method| {
            let sides = self.sides(method);
            (Side::ALL.map(|side| self.homes(method, side, &sides)), sides)
        };
        let now = ways(method);
        std::iter::successors(method.next(), |method| method.next()).find(|next| ways(*next) != now)
    }

    /// Where every pair of ranks of a host meets; the same on all ranks.
    pub fn sides(&self, method: Method) -> Sides {
        let ranks = 0..self.peers.len() as u32;
        let pairs = ranks.flat_map(|a| self.locals(a).filter(move |b| *b > a).map(move |b| (a, b)));
        Sides::new(pairs.filter(|(a, b)| {
            let (there, back) = (self.access_of(*a, *b), self.access_of(*b, *a));
            side(self.settings, method, &Pair { there, back }) == Side::Host
        }))
    }

    /// Where that side of every rank's memory lies; the same on all ranks.
    pub fn homes(&self, method: Method, side: Side, sides: &Sides) -> Vec<Home> {
        let is_foreign = |owner: u32| {
            let mut there =
                self.locals(owner).filter(|peer| *peer != owner && sides.of(owner, *peer) == side);
            there.any(|peer| !self.same_process(owner, peer))
        };
        (0..self.peers.len() as u32).map(|owner| home(side, method, is_foreign(owner))).collect()
    }

    fn access_of(&self, from: u32, to: u32) -> Access {
        let at = self.locals(from).position(|peer| peer == to);
        at.map_or(Access::No, |at| self.access[from as usize][at])
    }
}

/// Every rank learns whether every rank succeeded, and what it says. If one failed, all fail: that one with its own error,
/// the others with one that names it.
pub(super) fn agree(bootstrap: &Bootstrap, mine: Result<Vec<u8>, P2pError>) -> Result<Vec<Vec<u8>>, Failed> {
    let said = mine.as_ref().map(|bytes| &bytes[..]);
    let agreed = bootstrap.agree_or_retry(said, P2pError::allows_retry);
    match agreed.map_err(|error| Failed { error: Box::new(error.into()), may_retry: false })? {
        Agreement::All(blocks) => Ok(blocks),
        Agreement::Failed { peer, why, may_retry } => {
            let error = mine.err().unwrap_or(P2pError::PeerFailed { peer, why });
            Err(Failed { error: Box::new(error), may_retry })
        }
    }
}

/// Every rank's block, read.
pub(super) fn read_all<T>(blocks: &[Vec<u8>], read: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>, P2pError> {
    let read =
        |(peer, block): (usize, &Vec<u8>)| read(block).ok_or(P2pError::Malformed { peer: peer as u32 });
    blocks.iter().enumerate().map(read).collect()
}

fn card(device: &dyn Gpu) -> Result<Card, CudaError> {
    Ok(Card {
        uuid: device.uuid(),
        device: device.id(),
        exports_fds: device.exports_fds()?,
        pid_namespace: rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino),
        token: random(),
    })
}

/// Without the system's source of randomness names are merely unlikely to be guessed: the kernel still vouches for users.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(std::process::id()))
}

fn access(device: &dyn Gpu, other: &Card) -> Result<Access, CudaError> {
    Ok(match device.can_access(&other.uuid)? {
        None => Access::Hidden,
        Some(true) => Access::Yes,
        Some(false) => Access::No,
    })
}
