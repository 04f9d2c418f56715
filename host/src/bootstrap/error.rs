//! Layer: host / bootstrap, below everything else in it.
//! Takes: nothing.
//! Gives: [`BootstrapError`], which names the guilty rank or address, and [`RankList`], a bounded list of ranks.
//! Never: allocates for a list of ranks, however many are missing.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::os::NoDescriptor;
use oxccl_shared::abi::Rank;
use thiserror::Error;

/// More ranks than any machine has; bounds what a wrong number can make the root do.
pub const NRANKS_MAX: u32 = 1 << 20;
/// How many ranks a [`RankList`] names; the others are only counted.
pub const RANKS_NAMED_MAX: usize = 8;

/// Some ranks, in the order given: the first eight by number, the rest by count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RankList {
    named: [Rank; RANKS_NAMED_MAX],
    total: u32,
}

impl RankList {
    /// Appends a rank: by number while there is room, otherwise only counted.
    pub fn push(&mut self, rank: Rank) {
        if let Some(place) = self.named.get_mut(self.total as usize) {
            *place = rank;
        }
        self.total = self.total.saturating_add(1);
    }

    /// The ranks known by number.
    pub fn named(&self) -> &[Rank] {
        &self.named[..(self.total as usize).min(RANKS_NAMED_MAX)]
    }

    /// How many ranks are meant, named or not.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Whether no rank is meant.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// A list as it came over the wire: `named` may be shorter than `total`.
    pub(crate) fn from_parts(named: &[Rank], total: u32) -> RankList {
        let mut list: RankList = named.iter().copied().collect();
        list.total = total.max(list.total);
        if list.total as usize > named.len() && named.len() < RANKS_NAMED_MAX {
            list.total = named.len() as u32;
        }
        list
    }
}

impl FromIterator<Rank> for RankList {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> RankList {
        let mut list = RankList::default();
        ranks.into_iter().for_each(|rank| list.push(rank));
        list
    }
}

impl fmt::Display for RankList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named();
        let others = self.total as usize - named.len();
        f.write_str(if self.total == 1 { "rank " } else { "ranks " })?;
        for (i, rank) in named.iter().enumerate() {
            let last = i + 1 == named.len() && others == 0;
            f.write_str(match i {
                0 => "",
                _ if last => " and ",
                _ => ", ",
            })?;
            write!(f, "{rank}")?;
        }
        if others > 0 {
            write!(f, " and {others} more")?;
        }
        Ok(())
    }
}

/// Why a connection was not trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AuthFailure {
    /// The other side holds another secret: it belongs to another job, or the unique ids differ.
    #[error("it holds another secret (is every rank given the same unique id?)")]
    WrongSecret,
    /// What answers there does not speak this protocol.
    #[error("it does not speak OxCCL's bootstrap protocol (does another program use that port?)")]
    NotOxccl,
    /// The other side is of this job, but not the rank that was looked for.
    #[error("another rank of the job answers there")]
    WrongPeer,
}

/// What can go wrong while ranks find each other, and between them afterwards.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BootstrapError {
    /// These ranks never registered with the root. Every rank that did come gets this same error.
    #[error("{ranks} of {nranks} never came within {} s", secs(.waited))]
    MissingRanks {
        /// Who is missing.
        ranks: RankList,
        /// How many ranks were expected in all.
        nranks: u32,
        /// How long the root waited, from the first rank's arrival.
        waited: Duration,
    },
    /// Two processes claim the same rank.
    #[error("rank {rank} came twice: from {first} and from {second}; every process needs its own rank")]
    DuplicateRank {
        /// The rank that was claimed twice.
        rank: Rank,
        /// Where the first claim came from.
        first: SocketAddr,
        /// Where the second claim came from.
        second: SocketAddr,
    },
    /// A rank is not below the number of ranks, or that number is more than is supported.
    #[error("{}", out_of_range(*.rank, *.nranks))]
    RankOutOfRange {
        /// The rank.
        rank: Rank,
        /// How many ranks there are.
        nranks: u32,
    },
    /// Two ranks disagree on how many they are.
    #[error("rank {rank} says that there are {nranks} ranks, but rank {expected_by} says {expected}")]
    WorldSizeMismatch {
        /// The rank that came with another number.
        rank: Rank,
        /// That number.
        nranks: u32,
        /// The number that the first rank to come gave.
        expected: u32,
        /// The first rank to come.
        expected_by: Rank,
    },
    /// The other side speaks another version of the bootstrap protocol.
    #[error("{addr} speaks bootstrap version {theirs}, this library speaks {ours}; use one OxCCL everywhere")]
    VersionMismatch {
        /// Who was talked to.
        addr: SocketAddr,
        /// This library's version.
        ours: u16,
        /// The other side's version.
        theirs: u16,
    },
    /// The other side could not prove that it belongs to this job.
    #[error("{addr} was not trusted: {why}")]
    AuthFailed {
        /// Who was talked to.
        addr: SocketAddr,
        /// What it did wrong.
        why: AuthFailure,
    },
    /// The root could not be reached.
    #[error(
        "no root answered at {addr} within {} s ({}); is rank 0 running, the address reachable, and the unique id new? \
         One id makes one communicator",
        secs(.waited),
        std::io::Error::from_raw_os_error(*.errno)
    )]
    RootUnreachable {
        /// The root's address.
        addr: SocketAddr,
        /// For how long it was tried.
        waited: Duration,
        /// What the last attempt ended with.
        errno: i32,
    },
    /// The root went away before it had told who the neighbours are.
    #[error("the root at {addr} went away before all ranks had come; did its process die?")]
    RootLost {
        /// The root's address.
        addr: SocketAddr,
    },
    /// A rank is gone without having said goodbye.
    #[error("rank {rank} is gone: its process died or its host cannot be reached")]
    PeerLost {
        /// Who is gone.
        rank: Rank,
    },
    /// A rank told the others that it gave up.
    #[error("rank {rank} aborted: {reason}")]
    PeerAborted {
        /// Who gave up.
        rank: Rank,
        /// What it said.
        reason: String,
    },
    /// A rank closed in order while this one still wanted something from it.
    #[error("rank {rank} had already closed the communicator")]
    PeerLeft {
        /// Who had left.
        rank: Rank,
    },
    /// Something did not happen in time.
    #[error("{what} took longer than {} s{}", secs(.waited), waiting_for(.ranks))]
    Timeout {
        /// What was being done.
        what: &'static str,
        /// Whom it was waiting for; empty where that is not known here.
        ranks: RankList,
        /// For how long.
        waited: Duration,
    },
    /// A message is larger than the bootstrap carries.
    #[error("{len_bytes} bytes are more than the bootstrap carries at once ({max_bytes})")]
    TooLarge {
        /// The size asked for.
        len_bytes: usize,
        /// The largest size.
        max_bytes: usize,
    },
    /// A trusted rank sent something that makes no sense: the two sides run different code.
    #[error("rank {rank} broke the bootstrap protocol: {what}")]
    Protocol {
        /// Who sent it.
        rank: Rank,
        /// What was wrong with it.
        what: &'static str,
    },
    /// No network interface fits what was asked for.
    #[error("no network interface that is up has an address and fits {wanted}")]
    NoInterface {
        /// What was asked for, as the user wrote it.
        wanted: String,
    },
    /// The members of a child communicator are not distinct ranks of the parent.
    #[error(
        "rank {rank} is named twice among the members of a split, or is not one of the parent's {nranks}"
    )]
    BadMember {
        /// The first offender.
        rank: Rank,
        /// The size of the parent.
        nranks: u32,
    },
    /// A rank, or the root, cannot open one more socket.
    #[error("{}cannot {what}: {why}", rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default())]
    NoDescriptor {
        /// Which rank; none is the root.
        rank: Option<Rank>,
        /// What was tried, as a verb phrase.
        what: &'static str,
        /// What ran out, and what to do.
        why: NoDescriptor,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Io {
        /// What was tried, as a verb phrase.
        what: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

impl BootstrapError {
    /// Wraps an operating system's error, keeping its number. One that the lack of descriptors has is the root's until
    /// [`Self::of_rank`].
    pub(crate) fn io(what: &'static str, error: &std::io::Error) -> BootstrapError {
        match NoDescriptor::of(error) {
            Some(why) => BootstrapError::NoDescriptor { rank: None, what, why },
            None => BootstrapError::Io { what, errno: errno_of(error) },
        }
    }

    /// The same, known to have happened to this rank.
    pub(crate) fn of_rank(mut self, me: Rank) -> BootstrapError {
        if let BootstrapError::NoDescriptor { rank, .. } = &mut self {
            rank.get_or_insert(me);
        }
        self
    }
}

/// The system's number for `error`; errors that `std` makes up itself count as EIO.
pub(crate) fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn out_of_range(rank: Rank, nranks: u32) -> String {
    match rank.0 < nranks {
        false => format!("rank {rank} is not below the number of ranks, {nranks}"),
        true => format!("{nranks} ranks are more than the {NRANKS_MAX} that one communicator may have"),
    }
}

fn waiting_for(ranks: &RankList) -> String {
    if ranks.is_empty() { String::new() } else { format!(", still waiting for {ranks}") }
}

/// Seconds for people: whole when whole, else with one decimal.
fn secs(duration: &Duration) -> String {
    if duration.subsec_millis() == 0 {
        duration.as_secs().to_string()
    } else {
        format!("{:.1}", duration.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named_as_a_person_would() {
        let say = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<RankList>().to_string();
        assert_eq!(say(&[3]), "rank 3");
        assert_eq!(say(&[3, 4]), "ranks 3 and 4");
        assert_eq!(say(&[0, 1, 2, 3, 4, 5, 6, 7]), "ranks 0, 1, 2, 3, 4, 5, 6 and 7");
        assert_eq!(say(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        let error = BootstrapError::MissingRanks {
            ranks: [2, 5, 7].map(Rank).into_iter().collect(),
            nranks: 8,
            waited: Duration::from_secs(30),
        };
        assert_eq!(error.to_string(), "ranks 2, 5 and 7 of 8 never came within 30 s");
    }

    #[test]
    fn only_what_is_known_is_said() {
        let timeout = |ranks| BootstrapError::Timeout { what: "it", ranks, waited: Duration::from_secs(3) };
        assert_eq!(timeout(RankList::default()).to_string(), "it took longer than 3 s");
        let named = timeout(RankList::from_iter([Rank(4)]));
        assert_eq!(named.to_string(), "it took longer than 3 s, still waiting for rank 4");
        let out_of_range = |rank, nranks| BootstrapError::RankOutOfRange { rank: Rank(rank), nranks };
        assert_eq!(out_of_range(5, 2).to_string(), "rank 5 is not below the number of ranks, 2");
        let many = out_of_range(0, NRANKS_MAX + 1).to_string();
        assert_eq!(many, "1048577 ranks are more than the 1048576 that one communicator may have");
    }

    #[test]
    fn a_list_from_the_wire_never_claims_names_it_lacks() {
        let list = RankList::from_parts(&[Rank(1)], 100);
        assert_eq!((list.total(), list.to_string()), (1, "rank 1".into()));
        let full: Vec<Rank> = (0..8).map(Rank).collect();
        assert_eq!(RankList::from_parts(&full, 100).total(), 100);
        assert_eq!(RankList::from_parts(&full, 2).total(), 8);
    }
}
