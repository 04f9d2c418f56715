//! Layer: host / bootstrap.
//! Takes: registrations of authenticated ranks, broken connections, the time.
//! Gives: [`Rendezvous`], the root's decision: the order of the ring once all ranks have registered, or one failure
//! for every rank. Sans-IO: frames in, frames out, `now` explicit.
//! Never: waits for ranks once the answer is known, or leaves a registered rank without an answer.
//!
//! After a failure the root stays for a short while and gives late ranks the same answer, so that one process with a
//! wrong rank does not look like an unreachable root to those started a little later.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;

use super::error::{BootstrapError, NRANKS_MAX};
use super::rendezvous_wire::{Failure, Register, Reply};
use super::side::far_parent;
use crate::os::NoDescriptor;

/// How long a failed root answers late ranks.
pub const LINGER: Duration = Duration::from_secs(5);

/// How soon a rank whose connection broke before it could register comes again, if its process lives.
pub const COMES_AGAIN: Duration = Duration::from_millis(500);

/// The failed operation of a root without descriptors.
pub const ACCEPT_RANKS: &str = "accept all ranks as their root";

/// A connection to the root, numbered by the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    conn: ConnId,
    remote: SocketAddr,
    listener: SocketAddr,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Gathering { until: Instant },
    Failed { failure: Failure, until: Instant },
    Finished,
}

/// The root's side of one rendezvous.
#[derive(Debug)]
pub struct Rendezvous {
    phase: Phase,
    timeout: Duration,
    first_at: Option<Instant>,
    /// Number of ranks, and the rank that stated it.
    expected: Option<(u32, Rank)>,
    entries: BTreeMap<Rank, Entry>,
    /// Ranks whose connection broke before they registered, and when they count as dead.
    vanished: BTreeMap<Rank, Instant>,
    replies: VecDeque<(ConnId, Reply)>,
    answered_after_failure: u32,
}

/// A year: longer times may be beyond the clock's range.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

impl Rendezvous {
    /// Waits `unused` for a first rank, and `timeout` from then for the others.
    pub fn new(now: Instant, unused: Duration, timeout: Duration) -> Rendezvous {
        Rendezvous {
            phase: Phase::Gathering { until: now + unused.min(LONGEST) },
            timeout: timeout.min(LONGEST),
            first_at: None,
            expected: None,
            entries: BTreeMap::new(),
            vanished: BTreeMap::new(),
            replies: VecDeque::new(),
            answered_after_failure: 0,
        }
    }

    /// A rank, whose handshake proved it to be `rank`, registers.
    pub fn register(
        &mut self,
        now: Instant,
        conn: ConnId,
        rank: Rank,
        remote: SocketAddr,
        register: Register,
    ) {
        self.tick(now);
        match self.phase {
            Phase::Gathering { .. } => {}
            Phase::Failed { failure, .. } => return self.answer_late(conn, failure),
            Phase::Finished => return self.answer_surplus(conn, rank, remote, register.nranks),
        }
        self.came(rank);
        if self.first_at.is_none() {
            self.first_at = Some(now);
            self.phase = Phase::Gathering { until: now + self.timeout };
        }
        let (expected, expected_by) = *self.expected.get_or_insert((register.nranks, rank));
        let entry = Entry { conn, remote, listener: register.listener };
        let failure = if rank.0 >= register.nranks || register.nranks > NRANKS_MAX {
            Some(Failure::OutOfRange { rank, nranks: register.nranks })
        } else if register.nranks != expected {
            Some(Failure::WorldSize { rank, nranks: register.nranks, expected, expected_by })
        } else {
            self.entries.get(&rank).map(|first| Failure::Duplicate {
                rank,
                first: first.remote,
                second: remote,
            })
        };
        if let Some(failure) = failure {
            self.fail(now, failure);
            return self.answer_late(conn, failure);
        }
        self.entries.insert(rank, entry);
        if self.entries.len() as u64 == u64::from(expected) {
            self.assign();
        }
    }

    /// The number of ranks, once one has stated it.
    pub fn nranks(&self) -> Option<u32> {
        self.expected.map(|(nranks, _)| nranks)
    }

    /// A connection ended before its answer: its process has died.
    pub fn lost(&mut self, now: Instant, conn: ConnId) {
        if !matches!(self.phase, Phase::Gathering { .. }) {
            return;
        }
        let lost = self.entries.iter().find(|(_, entry)| entry.conn == conn).map(|(rank, _)| *rank);
        if let Some(rank) = lost {
            self.entries.remove(&rank);
            self.fail(now, Failure::Lost { rank });
        }
    }

    /// The connection of a rank, which its handshake proved, ended before it registered: its process died, unless it comes again soon.
    pub fn vanished(&mut self, now: Instant, rank: Rank) {
        if matches!(self.phase, Phase::Gathering { .. }) && !self.entries.contains_key(&rank) {
            self.vanished.insert(rank, now + COMES_AGAIN);
        }
    }

    /// A connection of a rank has passed the handshake.
    pub fn came(&mut self, rank: Rank) {
        self.vanished.remove(&rank);
    }

    /// The root cannot accept more ranks, and some wait.
    pub fn starved(&mut self, now: Instant, why: NoDescriptor) {
        if matches!(self.phase, Phase::Gathering { .. }) {
            self.fail(now, Failure::Starved { why });
        }
    }

    /// Handles timeouts.
    pub fn tick(&mut self, now: Instant) {
        let dead = self.vanished.iter().find(|(_, until)| now >= **until).map(|(rank, _)| *rank);
        if let Some(rank) = dead
            && matches!(self.phase, Phase::Gathering { .. })
        {
            self.fail(now, Failure::Lost { rank });
        }
        match self.phase {
            Phase::Gathering { until } if now >= until => match (self.first_at, self.expected) {
                (Some(first_at), Some((nranks, _))) => {
                    let ranks =
                        (0..nranks).map(Rank).filter(|rank| !self.entries.contains_key(rank)).collect();
                    self.fail(now, Failure::Missing { ranks, nranks, waited: now.duration_since(first_at) });
                }
                _ => self.phase = Phase::Finished,
            },
            Phase::Failed { until, .. } if now >= until => self.phase = Phase::Finished,
            _ => {}
        }
    }

    /// Latest time of the next [`tick`](Self::tick); `None` if there is no timeout.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Gathering { until } => self.vanished.values().copied().chain([until]).min(),
            Phase::Failed { until, .. } => Some(until),
            Phase::Finished => None,
        }
    }

    /// The next answer to send; its connection may be closed once it is written.
    pub fn next_reply(&mut self) -> Option<(ConnId, Reply)> {
        self.replies.pop_front()
    }

    /// Whether all answers have been given.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished) && self.replies.is_empty()
    }

    fn assign(&mut self) {
        let ring: Vec<(Rank, Entry)> = self.entries.iter().map(|(rank, entry)| (*rank, *entry)).collect();
        for (i, (rank, entry)) in ring.iter().enumerate() {
            let (successor, next) = ring[(i + 1) % ring.len()];
            let parent = far_parent(*rank, ring.len() as u32).map(|parent| ring[parent.index()].1.listener);
            self.replies
                .push_back((entry.conn, Reply::Assigned { successor, listener: next.listener, parent }));
        }
        self.phase = Phase::Finished;
    }

    /// A process that comes when all ranks have come, or when a failed root has stopped to answer.
    fn answer_surplus(&mut self, conn: ConnId, rank: Rank, second: SocketAddr, nranks: u32) {
        if self.entries.is_empty() {
            return;
        }
        let failure = match (self.entries.get(&rank), self.expected) {
            (Some(first), _) => Failure::Duplicate { rank, first: first.remote, second },
            (None, Some((expected, expected_by))) if nranks != expected => {
                Failure::WorldSize { rank, nranks, expected, expected_by }
            }
            _ => Failure::OutOfRange { rank, nranks },
        };
        self.replies.push_back((conn, Reply::Failed(failure)));
    }

    fn fail(&mut self, now: Instant, failure: Failure) {
        self.phase = Phase::Failed { failure, until: now + LINGER };
        self.vanished.clear();
        for entry in std::mem::take(&mut self.entries).into_values() {
            self.answer_late(entry.conn, failure);
        }
    }

    fn answer_late(&mut self, conn: ConnId, failure: Failure) {
        self.replies.push_back((conn, Reply::Failed(failure)));
        self.answered_after_failure += 1;
        // A rank claimed twice has two processes to answer. A missing or dead one may never come: the end of the
        // linger covers that.
        let twice = u32::from(matches!(failure, Failure::Duplicate { .. }));
        if self
            .expected
            .is_some_and(|(nranks, _)| self.answered_after_failure >= nranks.saturating_add(twice))
        {
            self.phase = Phase::Finished;
        }
    }
}

impl From<Failure> for BootstrapError {
    fn from(failure: Failure) -> BootstrapError {
        match failure {
            Failure::Missing { ranks, nranks, waited } => {
                BootstrapError::MissingRanks { ranks, nranks, waited }
            }
            Failure::Duplicate { rank, first, second } => {
                BootstrapError::DuplicateRank { rank, first, second }
            }
            Failure::WorldSize { rank, nranks, expected, expected_by } => {
                BootstrapError::WorldSizeMismatch { rank, nranks, expected, expected_by }
            }
            Failure::OutOfRange { rank, nranks } => BootstrapError::RankOutOfRange { rank, nranks },
            Failure::Lost { rank } => BootstrapError::PeerLost { rank },
            Failure::Starved { why } => BootstrapError::NoDescriptor { rank: None, what: ACCEPT_RANKS, why },
        }
    }
}

#[cfg(test)]
#[path = "tests/rendezvous.rs"]
mod tests;
