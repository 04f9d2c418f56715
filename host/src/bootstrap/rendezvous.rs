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

use super::error::{BootstrapError, Claimant, NRANKS_MAX, Strangers};
use super::handshake::{NO_RANK, PROTOCOL_VERSION};
use super::rendezvous_wire::{Failure, Register, Reply, Withdrawal};
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

/// Whose ranks may come to a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Jobs {
    /// Those of one job: another one's have another secret.
    One,
    /// Perhaps those of several, which nothing tells apart: they were started by hand, with one address.
    Any,
}

/// How long a root of [`Jobs::Any`] that has all ranks waits for one that comes twice, since those it has may be of two jobs. Two jobs that one
/// shell starts begin within milliseconds.
const SETTLES_WITHIN: Duration = Duration::from_millis(200);
/// The same where several processes of a host have started its ranks, as two scripts do, or two terminals.
const SEVERAL_PARENTS_SETTLE_WITHIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Entry {
    conn: ConnId,
    remote: SocketAddr,
    listener: SocketAddr,
    process: u32,
    parent: u32,
}

impl Entry {
    fn claimant(&self) -> Claimant {
        Claimant { ip: self.remote.ip(), process: self.process }
    }

    /// Whether another process of the same host started it.
    fn has_other_parent(&self, other: &Entry) -> bool {
        self.remote.ip() == other.remote.ip() && self.parent != other.parent
    }
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "a root has one, and copies failures")]
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
    jobs: Jobs,
    first_at: Option<Instant>,
    /// Number of ranks, the rank that stated it, and its process.
    expected: Option<(u32, Rank, Claimant)>,
    entries: BTreeMap<Rank, Entry>,
    /// A rank 0 that would be the root itself, and came before this root's own.
    rival: Option<Entry>,
    /// Ranks whose connection broke before they registered, and when they count as dead.
    vanished: BTreeMap<Rank, Instant>,
    /// Connections with another secret. Ranks that are missing may be theirs.
    strangers: Option<Strangers>,
    replies: VecDeque<(ConnId, Reply)>,
    answered_after_failure: u32,
    /// The number of ranks of another job, which came with another number than the first rank.
    others: u32,
}

/// A year: longer times may be beyond the clock's range.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

impl Rendezvous {
    /// Waits `unused` for a first rank, and `timeout` from then for the others; less, if a rank that has come is less patient.
    pub fn new(now: Instant, unused: Duration, timeout: Duration, jobs: Jobs) -> Rendezvous {
        Rendezvous {
            phase: Phase::Gathering { until: now + unused.min(LONGEST) },
            timeout: timeout.min(LONGEST),
            jobs,
            first_at: None,
            expected: None,
            entries: BTreeMap::new(),
            rival: None,
            vanished: BTreeMap::new(),
            strangers: None,
            replies: VecDeque::new(),
            answered_after_failure: 0,
            others: 0,
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
        let Register { nranks, listener, process, parent, patience, .. } = register;
        let wants_root = register.wants_root && rank.0 == 0;
        let entry = Entry { conn, remote, listener, process, parent };
        if self.expected.is_some_and(|(expected, ..)| nranks != expected) {
            self.others = nranks;
        }
        if !matches!(self.phase, Phase::Gathering { .. }) {
            return self.came_late(rank, entry, nranks, wants_root);
        }
        self.came(rank);
        if let (NO_RANK, Some(why)) = (rank, register.withdraws) {
            let failure = Failure::Unplaced { process: entry.claimant(), why };
            self.fail(now, failure);
            return self.answer_late(conn, failure);
        }
        if self.first_at.is_none() {
            self.first_at = Some(now);
            self.phase = Phase::Gathering { until: now + self.timeout };
        }
        let first = self.entries.get(&rank).or(self.rival.as_ref().filter(|_| rank.0 == 0)).copied();
        if wants_root && first.is_none() {
            // This root's own rank 0 will be here in a moment.
            self.rival = Some(entry);
            return;
        }
        let duplicate =
            |first: Entry| Failure::Duplicate { rank, first: first.claimant(), second: entry.claimant() };
        let second = entry.claimant();
        let (expected, expected_by, first_by) = *self.expected.get_or_insert((nranks, rank, second));
        let failure = if rank.0 >= nranks || nranks > NRANKS_MAX {
            Some(Failure::OutOfRange { rank, nranks })
        } else if nranks != expected && !wants_root {
            Some(Failure::WorldSize { rank, nranks, second, expected, expected_by, first: first_by })
        } else {
            first.map(duplicate)
        };
        if let Some(failure) = failure {
            self.fail(now, failure);
            return self.answer_late(conn, failure);
        }
        self.entries.insert(rank, entry);
        if let Some(why) = register.withdraws {
            return self.withdraw(now, conn, why);
        }
        if let Phase::Gathering { until } = &mut self.phase {
            *until = (*until).min(now + patience.min(LONGEST));
        }
        if self.is_complete() {
            match self.settles_within() {
                Some(time) => self.phase = Phase::Gathering { until: now + time },
                None => self.assign(),
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.expected.is_some_and(|(nranks, ..)| self.entries.len() as u64 == u64::from(nranks))
    }

    /// How long it takes until the ranks that have come can be taken for those of one job.
    fn settles_within(&self) -> Option<Duration> {
        let entries = || self.entries.values();
        let has_several_parents =
            || entries().any(|entry| entries().any(|other| entry.has_other_parent(other)));
        match self.jobs {
            Jobs::One => None,
            Jobs::Any if self.entries.len() == 1 => None,
            Jobs::Any if has_several_parents() => Some(SEVERAL_PARENTS_SETTLE_WITHIN),
            Jobs::Any => Some(SETTLES_WITHIN),
        }
    }

    /// The number of ranks, once one has stated it.
    pub fn nranks(&self) -> Option<u32> {
        self.expected.map(|(nranks, ..)| nranks)
    }

    /// A connection ended before its answer: its process has died.
    pub fn lost(&mut self, now: Instant, conn: ConnId) {
        if !matches!(self.phase, Phase::Gathering { .. }) {
            return;
        }
        self.rival.take_if(|rival| rival.conn == conn);
        let lost = self.entries.iter().find(|(_, entry)| entry.conn == conn).map(|(rank, _)| *rank);
        if let Some(rank) = lost {
            self.entries.remove(&rank);
            self.fail(now, Failure::Lost { rank });
        }
    }

    /// A rank that has registered does not join after all. It gets an answer too, by which it knows whether the others come to it.
    pub fn withdraw(&mut self, now: Instant, conn: ConnId, why: Withdrawal) {
        if !matches!(self.phase, Phase::Gathering { .. }) {
            return;
        }
        let withdrawn = self.entries.iter().find(|(_, entry)| entry.conn == conn).map(|(rank, _)| *rank);
        if let Some(rank) = withdrawn {
            self.fail(now, Failure::Withdrew { rank, why });
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

    /// A rank that has the job's secret cannot come: it speaks another version.
    pub fn other_version(&mut self, now: Instant, rank: Rank, addr: SocketAddr, theirs: u16) {
        if matches!(self.phase, Phase::Gathering { .. }) {
            self.fail(now, Failure::Version { rank, addr, theirs, ours: PROTOCOL_VERSION });
        }
    }

    /// Connections were refused because they hold another secret.
    pub fn refused(&mut self, strangers: Strangers) {
        strangers.add_to(&mut self.strangers);
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
            Phase::Gathering { until } if now >= until && self.is_complete() => self.assign(),
            Phase::Gathering { until } if now >= until => match (self.first_at, self.expected) {
                (Some(first_at), Some((nranks, ..))) => {
                    let ranks =
                        (0..nranks).map(Rank).filter(|rank| !self.entries.contains_key(rank)).collect();
                    let (limit, strangers) = (until.duration_since(first_at), self.strangers);
                    self.fail(now, Failure::Missing { ranks, nranks, limit, strangers });
                }
                _ => {
                    self.phase = Phase::Finished;
                    self.replies.extend(self.rival.take().map(|rival| (rival.conn, Reply::Leaving)));
                }
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

    /// Answers a rank that registers when nobody is waited for any more.
    fn came_late(&mut self, rank: Rank, entry: Entry, nranks: u32, wants_root: bool) {
        use Failure::{Duplicate, Unplaced, WorldSize};
        match self.phase {
            // Two jobs: both fail. Or this is the rank 0 of a job of which another process has said that it cannot come.
            Phase::Failed {
                failure: failure @ (Duplicate { .. } | WorldSize { .. } | Unplaced { .. }),
                ..
            } if wants_root => {
                self.answer_late(entry.conn, failure);
            }
            _ if wants_root => self.replies.push_back((entry.conn, Reply::Leaving)),
            Phase::Failed { failure, .. } => self.answer_late(entry.conn, failure),
            Phase::Gathering { .. } | Phase::Finished => self.answer_surplus(rank, entry, nranks),
        }
    }

    /// A process that comes when all ranks have come, or when a failed root has stopped to answer.
    fn answer_surplus(&mut self, rank: Rank, entry: Entry, nranks: u32) {
        if self.entries.is_empty() {
            return;
        }
        let failure = match (self.entries.get(&rank), self.expected) {
            (Some(first), _) => {
                Failure::Duplicate { rank, first: first.claimant(), second: entry.claimant() }
            }
            (None, Some((expected, expected_by, first))) if nranks != expected => {
                Failure::WorldSize { rank, nranks, second: entry.claimant(), expected, expected_by, first }
            }
            _ => Failure::OutOfRange { rank, nranks },
        };
        self.replies.push_back((entry.conn, Reply::Failed(failure)));
    }

    fn fail(&mut self, now: Instant, failure: Failure) {
        self.phase = Phase::Failed { failure, until: now + LINGER };
        self.vanished.clear();
        let entries = std::mem::take(&mut self.entries).into_values();
        for entry in entries.chain(self.rival.take()) {
            self.answer_late(entry.conn, failure);
        }
    }

    fn answer_late(&mut self, conn: ConnId, failure: Failure) {
        self.replies.push_back((conn, Reply::Failed(failure)));
        self.answered_after_failure += 1;
        let Some((nranks, ..)) = self.expected else { return };
        // A rank claimed twice has two processes to answer, two jobs have all of theirs. A missing or dead one may never come: the end of the
        // linger covers that.
        let surplus = match failure {
            Failure::Duplicate { .. } | Failure::WorldSize { .. }
                if self.jobs == Jobs::Any && self.others != 0 =>
            {
                self.others
            }
            Failure::Duplicate { rank, .. } if rank.0 == 0 || self.jobs == Jobs::Any => nranks,
            Failure::Duplicate { .. } => 1,
            _ => 0,
        };
        if self.answered_after_failure >= nranks.saturating_add(surplus) {
            self.phase = Phase::Finished;
        }
    }
}

impl From<Failure> for BootstrapError {
    fn from(failure: Failure) -> BootstrapError {
        match failure {
            Failure::Missing { ranks, nranks, limit, strangers } => {
                let strangers = strangers.map(Box::new);
                BootstrapError::MissingRanks { ranks, nranks, limit, strangers, calls: None }
            }
            Failure::Duplicate { rank, first, second } => {
                BootstrapError::DuplicateRank { rank, first, second }
            }
            Failure::WorldSize { rank, nranks, second, expected, expected_by, first } => {
                BootstrapError::WorldSizeMismatch { rank, nranks, second, expected, expected_by, first }
            }
            Failure::Version { rank, addr, theirs, ours } => {
                BootstrapError::VersionMismatch { rank: Some(rank), addr, ours, theirs }
            }
            Failure::OutOfRange { rank, nranks } => BootstrapError::RankOutOfRange { rank, nranks },
            Failure::Lost { rank } => BootstrapError::PeerLost { rank },
            Failure::Withdrew { rank, why } => BootstrapError::PeerAborted { rank, reason: why.reason() },
            Failure::Unplaced { process, why } => BootstrapError::Unplaced { process, reason: why.reason() },
            Failure::Starved { why } => BootstrapError::NoDescriptor { rank: None, what: ACCEPT_RANKS, why },
        }
    }
}

#[cfg(test)]
#[path = "tests/rendezvous.rs"]
mod tests;
