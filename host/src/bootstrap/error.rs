//! Layer: host / bootstrap.
//! Takes: lists of ranks.
//! Gives: [`BootstrapError`], which names the rank or address at fault.
//! Never: allocates for a list of ranks, however many are missing.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::rank_list::RankList;
use crate::os::NoDescriptor;
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// More ranks than any machine has; bounds the effect of a wrong number on the root.
pub const NRANKS_MAX: u32 = 1 << 20;

/// What a timeout calls this rank's wait in an all-gather.
pub(super) const ALL_GATHER: &str = "an all-gather of the bootstrap";
/// What a timeout calls a wait that another rank gave up; [which](BootstrapError::Timeout) follows.
pub(super) const ANOTHERS_WAIT: &str = "a wait";

/// A process that claims a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claimant {
    /// The address that it came from.
    pub ip: IpAddr,
    /// Its number on its host.
    pub process: u32,
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} at {}", self.process, self.ip)
    }
}

/// Connections that were refused because they hold another secret than the job's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Strangers {
    /// How many there were.
    pub count: u32,
    /// Where the last came from.
    pub last: SocketAddr,
}

impl Strangers {
    /// Adds these to those before them, if any.
    pub(crate) fn add_to(self, before: &mut Option<Strangers>) {
        let count = before.map_or(0, |before| before.count).saturating_add(self.count);
        *before = Some(Strangers { count, last: self.last });
    }
}

/// The calls about a communicator that ranks make where they wait for each other until the time is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallsInTimeout {
    /// This rank's.
    pub ours: &'static str,
    /// The first one's that did not come, if it last said that it was in another.
    pub theirs: Option<&'static str>,
}

const SAME_SECRET: &str =
    "is every rank given the same unique id, or OXCCL_COMM_SECRET, and run by the same user?";

/// Why a connection was not trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AuthFailure {
    /// The other side holds another secret: it belongs to another job, or the unique ids differ.
    #[error("it holds another secret ({SAME_SECRET})")]
    WrongSecret,
    /// The other side does not speak this protocol.
    #[error("it does not speak OxCCL's bootstrap protocol (does another program use that port?)")]
    NotOxccl,
    /// The other side shows the secret's traces, but its bytes do not fit: they were changed, or recorded and sent again.
    #[error(
        "its bytes were changed on the way, or recorded and sent again: something between the two tampers with the connection"
    )]
    Altered,
    /// The other side is of this job, but another rank than expected.
    #[error("another rank of the job answers there")]
    WrongPeer,
    /// Ranks have unique ids of their own, and the connecting side says that it is a rank whose id it does not have.
    #[error("the unique id is another rank's (every rank was given one of its own)")]
    NotThatRank,
}

/// Who listens where a rank 0 would.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Occupant {
    /// A root whose secret is another.
    #[error("another job, which has another secret, meets there")]
    OtherJob,
    /// Whatever does not speak this protocol.
    #[error("another program, or another version of OxCCL, listens there")]
    OtherProgram,
    /// A root of another version.
    #[error(
        "another job meets there, whose library speaks bootstrap version {theirs} where this one speaks {ours}"
    )]
    OtherVersion {
        /// Its version.
        theirs: u16,
        /// This library's.
        ours: u16,
    },
    /// The root of an earlier communicator of this job, which did not end.
    #[error("an earlier communicator of this job still meets there")]
    EarlierRoot,
    /// Nobody who answers.
    #[error("it is in use, and nobody answers there")]
    Silent,
}

/// Errors of the rendezvous, and between ranks afterwards.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BootstrapError {
    /// These ranks never registered with the root. Every rank that did gets this error.
    #[error("{}{ranks} of {nranks} {}{}{}", within(.calls.as_deref()), missed(.limit, .calls.as_deref()), refused(.strangers), instead(.ranks, .calls.as_deref()))]
    MissingRanks {
        /// The missing ranks.
        ranks: RankList,
        /// Number of expected ranks.
        nranks: u32,
        /// How long the root waits for them, from the first rank that registered on; zero on a missing rank that comes when the others have given up.
        limit: Duration,
        /// Who came meanwhile, and was refused: perhaps these ranks.
        strangers: Option<Box<Strangers>>,
        /// The call in which they did not come, where it is known.
        calls: Option<Box<CallsInTimeout>>,
    },
    /// Two processes claim the same rank.
    #[error(
        "rank {rank} came twice, as {first} and as {second}: every process of a job needs its own rank, and every job its own address \
         (OXCCL_COMM_ID or NCCL_COMM_ID)"
    )]
    DuplicateRank {
        /// The rank.
        rank: Rank,
        /// The process that came first.
        first: Claimant,
        /// The process that came second.
        second: Claimant,
    },
    /// A rank is not below the number of ranks, or that number exceeds the maximum.
    #[error("{}", out_of_range(*.rank, *.nranks))]
    RankOutOfRange {
        /// The rank.
        rank: Rank,
        /// Number of ranks.
        nranks: u32,
    },
    /// Two ranks disagree on the number of ranks.
    #[error(
        "rank {rank}, {second}, says that there are {nranks} ranks, but rank {expected_by}, {first}, says {expected}: every process of a job \
         needs the same number, and every job its own address (OXCCL_COMM_ID or NCCL_COMM_ID)"
    )]
    WorldSizeMismatch {
        /// The rank with another number.
        rank: Rank,
        /// Its number.
        nranks: u32,
        /// Its process.
        second: Claimant,
        /// The first rank's number.
        expected: u32,
        /// The first rank that registered.
        expected_by: Rank,
        /// Its process.
        first: Claimant,
    },
    /// The other side speaks another version of the bootstrap protocol.
    #[error(
        "{} speaks bootstrap version {theirs}, {} speaks {ours}: all processes of a job need the same OxCCL",
        at(.rank, .addr),
        if rank.is_some() { "the root" } else { "this library" }
    )]
    VersionMismatch {
        /// The rank that the root refused; `None`: the root of this rank.
        rank: Option<Rank>,
        /// The other side's address.
        addr: SocketAddr,
        /// This library's version, or the root's.
        ours: u16,
        /// The other side's version.
        theirs: u16,
    },
    /// The other side could not authenticate.
    #[error("{addr} was not trusted: {why}")]
    AuthFailed {
        /// The other side's address.
        addr: SocketAddr,
        /// Its mistake.
        why: AuthFailure,
    },
    /// The root could not be reached.
    #[error(
        "no root answered at {addr} within {} s ({}); is rank 0 running, the address reachable, and the unique id new? \
         One id makes one communicator, also where another rank could not join, which rank 0's error names",
        secs(.waited),
        std::io::Error::from_raw_os_error(*.errno)
    )]
    RootUnreachable {
        /// The root's address.
        addr: SocketAddr,
        /// The time tried.
        waited: Duration,
        /// The last attempt's error.
        errno: i32,
    },
    /// Rank 0 cannot listen at the address where its job meets.
    #[error(
        "rank 0 cannot listen at {addr}, where its job meets: {occupant}; give every job an address of its own (OXCCL_COMM_ID or \
         NCCL_COMM_ID)"
    )]
    RootAddrTaken {
        /// The address.
        addr: SocketAddr,
        /// Who listens there.
        occupant: Occupant,
    },
    /// The root ended before it had assigned the neighbours.
    #[error("the root at {addr} went away before all ranks had come; did its process die?")]
    RootLost {
        /// The root's address.
        addr: SocketAddr,
    },
    /// A rank ended without goodbye.
    #[error("rank {rank} is gone: its process died or its host cannot be reached")]
    PeerLost {
        /// The rank.
        rank: Rank,
    },
    /// A rank cannot connect to another, for a reason that is no sign of that one's death.
    #[error(
        "rank {from} cannot connect to rank {rank} at {addr}: {}; {}",
        std::io::Error::from_raw_os_error(*.errno),
        unreachable_advice(*.errno, addr)
    )]
    Unreachable {
        /// The rank that tried.
        from: Rank,
        /// The other one.
        rank: Rank,
        /// Its address.
        addr: SocketAddr,
        /// The system's error number.
        errno: i32,
    },
    /// A rank aborted.
    #[error("rank {rank} aborted: {reason}")]
    PeerAborted {
        /// The rank.
        rank: Rank,
        /// Its reason.
        reason: String,
    },
    /// A process of the job, which does not know which rank it is, cannot take part.
    #[error("{process}, which is to be a rank of this job, cannot join: {reason}")]
    Unplaced {
        /// The process.
        process: Claimant,
        /// Its reason.
        reason: String,
    },
    /// A rank left while this one still needed it.
    #[error("rank {rank} had already closed the communicator")]
    PeerLeft {
        /// The rank.
        rank: Rank,
    },
    /// A rank has finished the shrink that failed on this one, and has a communicator in which this one is missing.
    #[error(
        "rank {rank} has finished the shrink that failed here, and does not come to another: end this process, or let it join as a new \
         rank when the others grow"
    )]
    PeerWentOn {
        /// The rank.
        rank: Rank,
    },
    /// The ranks of a communicator, which meet to make a call together, make different ones.
    #[error(
        "rank {rank} calls {theirs}, and this rank calls {ours}: all ranks of a communicator make its calls in the same order"
    )]
    CallsDiffer {
        /// The first rank that makes another call than this one.
        rank: Rank,
        /// Its call.
        theirs: &'static str,
        /// This rank's.
        ours: &'static str,
    },
    /// This process aborted the communicator while its ranks met.
    #[error("this process aborted the communicator")]
    Aborted,
    /// A timeout.
    #[error("{}{what}{} took longer than {} s{}{}", within(.calls.as_deref()), of_rank(*.by), limit_secs(.limit), limited_by(.calls.as_deref()), waiting_for(.ranks, .calls.as_deref()))]
    Timeout {
        /// The call in which the ranks meet, such as a split, where it is known.
        calls: Option<Box<CallsInTimeout>>,
        /// The rank that gave up waiting, if it is not this one.
        by: Option<Rank>,
        /// The operation.
        what: &'static str,
        /// The ranks it waited for; empty if unknown here.
        ranks: RankList,
        /// How long it may take.
        limit: Duration,
    },
    /// A message exceeds the maximum size.
    #[error("{len_bytes} bytes are more than the bootstrap carries at once ({max_bytes})")]
    TooLarge {
        /// Its size.
        len_bytes: usize,
        /// The maximum.
        max_bytes: usize,
    },
    /// A trusted rank sent an invalid message: the two sides run different code.
    #[error("rank {rank} broke the bootstrap protocol: {what}")]
    Protocol {
        /// The sender.
        rank: Rank,
        /// The mistake.
        what: &'static str,
    },
    /// What came from a rank is not what it sent.
    #[error(
        "bytes of rank {rank} were changed on the way: something between its host and this one tampers with the connection, or the \
         memory of one is faulty"
    )]
    Altered {
        /// The sender.
        rank: Rank,
    },
    /// No network interface matches the configuration.
    #[error("no network interface that is up has an address and fits {wanted}: this host has {there}")]
    NoInterface {
        /// The configuration, as the user wrote it.
        wanted: String,
        /// The interfaces with their addresses, and what to do if the loopback is down.
        there: String,
    },
    /// This host has not the address that is to be listened at.
    #[error("cannot listen at {ip}, which is no address of this host: it has {there}")]
    NoAddress {
        /// The address.
        ip: IpAddr,
        /// What it has, as above.
        there: String,
    },
    /// A rank is to listen at its loopback, and rank 0 is on another host.
    #[error(
        "rank {rank} would listen at {ip}, which no other host reaches, and rank 0 is at {root}: NCCL_SOCKET_IFNAME is to name another interface; \
         this host has {there}"
    )]
    OnlyLoopback {
        /// The rank.
        rank: Rank,
        /// Its address.
        ip: IpAddr,
        /// Rank 0's.
        root: IpAddr,
        /// What it has, as above.
        there: String,
    },
    /// The ranks of one host meet by its loopback, and that is down.
    #[error("{addr} cannot be reached: this host has {there}")]
    LoopbackDown {
        /// The address.
        addr: SocketAddr,
        /// What it has, as above.
        there: String,
    },
    /// The members of a child communicator are not distinct ranks of the parent, or the caller is none of them.
    #[error(
        "rank {rank} is named twice among the members, is left out by its own call, or is not one of the parent's {nranks}"
    )]
    BadMember {
        /// The first wrong rank.
        rank: Rank,
        /// The size of the parent.
        nranks: u32,
    },
    /// A communicator shall grow to fewer ranks than it has.
    #[error(
        "{nranks} ranks are fewer than the {parent} that the communicator has; leave ranks out by a shrink"
    )]
    GrowsSmaller {
        /// Ranks of the new communicator.
        nranks: u32,
        /// The size of the parent.
        parent: u32,
    },
    /// A rank, or the root, has no descriptor left for another socket.
    #[error("{}cannot {what}: {why}", rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default())]
    NoDescriptor {
        /// The rank; `None` is the root.
        rank: Option<Rank>,
        /// The attempted operation, as a verb phrase.
        what: &'static str,
        /// The exhausted limit, and advice.
        why: NoDescriptor,
    },
    /// A system call failed.
    #[error("cannot {what}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Io {
        /// The attempted operation, as a verb phrase.
        what: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

impl BootstrapError {
    /// Wraps an operating system's error, keeping its number. An error for lack of descriptors is the root's until
    /// [`Self::of_rank`].
    pub(crate) fn io(what: &'static str, error: &std::io::Error) -> BootstrapError {
        match NoDescriptor::of(error) {
            Some(why) => BootstrapError::NoDescriptor { rank: None, what, why },
            None => BootstrapError::Io { what, errno: errno_of(error) },
        }
    }

    /// The error of a child communicator with the numbers that its ranks have in the parent: `here` of each, of `nranks` ranks.
    pub(crate) fn renumbered(mut self, here: impl Fn(Rank) -> Rank, nranks: u32) -> BootstrapError {
        if let BootstrapError::MissingRanks { nranks: of, .. }
        | BootstrapError::BadMember { nranks: of, .. } = &mut self
        {
            *of = nranks;
        }
        self.each_rank(|rank| *rank = here(*rank));
        self
    }

    /// Without a wildcard: a new variant says here which ranks it names.
    fn each_rank(&mut self, mut see: impl FnMut(&mut Rank)) {
        match self {
            BootstrapError::MissingRanks { ranks, nranks: _, limit: _, strangers: _, calls: _ } => {
                ranks.named_mut().iter_mut().for_each(see);
            }
            BootstrapError::Timeout { ranks, by, calls: _, what: _, limit: _ } => {
                ranks.named_mut().iter_mut().chain(by).for_each(see);
            }
            BootstrapError::DuplicateRank { rank, first: _, second: _ }
            | BootstrapError::PeerLost { rank }
            | BootstrapError::PeerAborted { rank, reason: _ }
            | BootstrapError::PeerLeft { rank }
            | BootstrapError::PeerWentOn { rank }
            | BootstrapError::CallsDiffer { rank, theirs: _, ours: _ }
            | BootstrapError::OnlyLoopback { rank, ip: _, root: _, there: _ }
            | BootstrapError::Protocol { rank, what: _ }
            | BootstrapError::Altered { rank }
            | BootstrapError::BadMember { rank, nranks: _ } => see(rank),
            BootstrapError::WorldSizeMismatch {
                rank,
                expected_by: other,
                nranks: _,
                second: _,
                expected: _,
                first: _,
            }
            | BootstrapError::Unreachable { rank, from: other, addr: _, errno: _ } => {
                see(rank);
                see(other);
            }
            BootstrapError::VersionMismatch { rank, addr: _, ours: _, theirs: _ }
            | BootstrapError::NoDescriptor { rank, what: _, why: _ } => rank.iter_mut().for_each(see),
            // No rank of the communicator has this number.
            BootstrapError::RankOutOfRange { rank: _, nranks: _ } => {}
            BootstrapError::AuthFailed { addr: _, why: _ }
            | BootstrapError::Unplaced { process: _, reason: _ }
            | BootstrapError::RootUnreachable { addr: _, waited: _, errno: _ }
            | BootstrapError::RootAddrTaken { addr: _, occupant: _ }
            | BootstrapError::RootLost { addr: _ }
            | BootstrapError::Aborted
            | BootstrapError::TooLarge { len_bytes: _, max_bytes: _ }
            | BootstrapError::NoInterface { wanted: _, there: _ }
            | BootstrapError::NoAddress { ip: _, there: _ }
            | BootstrapError::LoopbackDown { addr: _, there: _ }
            | BootstrapError::GrowsSmaller { nranks: _, parent: _ }
            | BootstrapError::Io { what: _, errno: _ } => {}
        }
    }

    /// The same, with the call in which the ranks meet, and the other one that the [rank that it missed](Self::missed) said it was in: a timeout
    /// names them, and what sets its limit.
    pub(crate) fn in_call(mut self, ours: &'static str, theirs: Option<&'static str>) -> BootstrapError {
        if let BootstrapError::MissingRanks { calls, .. } | BootstrapError::Timeout { calls, .. } = &mut self
        {
            *calls = Some(Box::new(CallsInTimeout { ours, theirs }));
        }
        self
    }

    /// The first rank that did not come in time, if that is the error.
    pub(crate) fn missed(&self) -> Option<Rank> {
        match self {
            BootstrapError::MissingRanks { ranks, .. } | BootstrapError::Timeout { ranks, .. } => {
                ranks.named().first().copied()
            }
            _ => None,
        }
    }

    /// The same, as an error of this rank.
    pub(crate) fn of_rank(mut self, me: Rank) -> BootstrapError {
        if let BootstrapError::NoDescriptor { rank, .. } = &mut self {
            rank.get_or_insert(me);
        }
        self
    }
}

/// The errno of `error`; errors of `std` itself count as EIO.
pub(crate) fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn unreachable_advice(errno: i32, addr: &SocketAddr) -> &'static str {
    match errno {
        libc::EADDRNOTAVAIL => "this host has no free port left for it (net.ipv4.ip_local_port_range)",
        _ if addr.ip().is_loopback() => {
            "only its own host reaches that: NCCL_SOCKET_IFNAME is to name another interface there"
        }
        libc::ECONNREFUSED => "a firewall refuses connections to its host, or its process has just ended",
        _ => {
            "is there a route to its host, and does no firewall forbid it? NCCL_SOCKET_IFNAME chooses the network"
        }
    }
}

fn out_of_range(rank: Rank, nranks: u32) -> String {
    match rank.0 < nranks {
        false => format!("rank {rank} is not below the number of ranks, {nranks}"),
        true => {
            format!(
                "rank {rank} was told of {nranks} ranks, more than the {NRANKS_MAX} that one communicator may have"
            )
        }
    }
}

fn at(rank: &Option<Rank>, addr: &SocketAddr) -> String {
    rank.map_or_else(|| format!("the root at {addr}"), |rank| format!("rank {rank} at {addr}"))
}

/// The call, before what lasted in it.
fn within(calls: Option<&CallsInTimeout>) -> String {
    calls.map_or_else(String::new, |calls| format!("{}: ", calls.ours))
}

/// Whose wait it was, where it was another rank's.
fn of_rank(by: Option<Rank>) -> String {
    by.map_or_else(String::new, |rank| format!(" of rank {rank}"))
}

/// What sets the limit of a wait in a named call.
fn limited_by(calls: Option<&CallsInTimeout>) -> &'static str {
    calls.map_or("", |_| " (OXCCL_BOOTSTRAP_TIMEOUT)")
}

fn waiting_for(ranks: &RankList, calls: Option<&CallsInTimeout>) -> String {
    match ranks.is_empty() {
        true => String::new(),
        false => format!(", still waiting for {ranks}{}", instead(ranks, calls)),
    }
}

/// What the first of the missing ranks does. This rank's call [begins](within) the text.
fn instead(ranks: &RankList, calls: Option<&CallsInTimeout>) -> String {
    let said = || Some((ranks.named().first()?, calls?.theirs?));
    said().map_or_else(String::new, |(rank, theirs)| format!("; rank {rank} said that it was in {theirs}"))
}

/// What came instead of ranks that are missing.
fn refused(strangers: &Option<Box<Strangers>>) -> String {
    let Some(Strangers { count, last }) = strangers.as_deref() else { return String::new() };
    let came = if *count == 1 { "one came".to_owned() } else { format!("{count} came") };
    format!("; {came} with another secret and had to be refused, the last from {last} ({SAME_SECRET})")
}

fn missed(limit: &Duration, calls: Option<&CallsInTimeout>) -> String {
    match limit.is_zero() {
        true => "did not come in time: the others have given up".to_owned(),
        false => format!("never came within {} s{}", limit_secs(limit), limited_by(calls)),
    }
}

/// Seconds of a limit, as it was set; to the millisecond, since some are computed.
pub(crate) fn limit_secs(limit: &Duration) -> f64 {
    limit.as_millis() as f64 / 1e3
}

/// Seconds that were measured, for messages: whole if possible, else with one decimal.
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
    fn missing_ranks_are_named_with_the_limit() {
        let error = BootstrapError::MissingRanks {
            ranks: [2, 5, 7].map(Rank).into_iter().collect(),
            nranks: 8,
            limit: Duration::from_secs(30),
            strangers: None,
            calls: None,
        };
        assert_eq!(error.to_string(), "ranks 2, 5 and 7 of 8 never came within 30 s");
        // It named this rank's call twice.
        assert_eq!(
            error.in_call("shrink", Some("split")).to_string(),
            "shrink: ranks 2, 5 and 7 of 8 never came within 30 s (OXCCL_BOOTSTRAP_TIMEOUT); rank 2 said that it was in split"
        );
    }

    #[test]
    fn only_what_is_known_is_said() {
        let limit = Duration::from_secs(3);
        let timeout = |ranks| BootstrapError::Timeout { calls: None, by: None, what: "it", ranks, limit };
        assert_eq!(timeout(RankList::default()).to_string(), "it took longer than 3 s");
        let named = timeout(RankList::from_iter([Rank(4)]));
        assert_eq!(named.to_string(), "it took longer than 3 s, still waiting for rank 4");
        let named = named.in_call("split", None);
        let text = "split: it took longer than 3 s (OXCCL_BOOTSTRAP_TIMEOUT), still waiting for rank 4";
        assert_eq!(named.to_string(), text);
        assert_eq!(named.missed(), Some(Rank(4)));
        let differ = named.in_call("split", Some("shrink"));
        assert_eq!(differ.to_string(), format!("{text}; rank 4 said that it was in shrink"));
        // It did not say whose.
        let another = BootstrapError::Timeout {
            calls: None,
            by: Some(Rank(1)),
            what: ANOTHERS_WAIT,
            ranks: RankList::from_iter([Rank(4)]),
            limit,
        };
        let text = "a wait of rank 1 took longer than 3 s, still waiting for rank 4";
        assert_eq!(another.to_string(), text);
        let text = "a wait of rank 11 took longer than 3 s, still waiting for rank 14";
        assert_eq!(another.renumbered(|rank| Rank(rank.0 + 10), 20).to_string(), text);
        // A text says nothing of the call.
        let what = "waiting: for somebody";
        let other =
            BootstrapError::Timeout { calls: None, by: None, what, ranks: RankList::default(), limit };
        assert_eq!(other.to_string(), "waiting: for somebody took longer than 3 s");
        let short = BootstrapError::Timeout {
            calls: None,
            by: None,
            what: "it",
            ranks: RankList::default(),
            limit: Duration::from_micros(50_001),
        };
        assert_eq!(short.to_string(), "it took longer than 0.05 s");
        let out_of_range = |rank, nranks| BootstrapError::RankOutOfRange { rank: Rank(rank), nranks };
        assert_eq!(out_of_range(5, 2).to_string(), "rank 5 is not below the number of ranks, 2");
        let many = out_of_range(0, NRANKS_MAX + 1).to_string();
        // Ranks that use the id later get this error too.
        assert_eq!(
            many,
            "rank 0 was told of 1048577 ranks, more than the 1048576 that one communicator may have"
        );
    }

    /// Of each variant that names ranks: members 1 and 2 of a child are ranks 5 and 7 of eight.
    #[test]
    fn a_childs_errors_name_ranks_by_their_numbers_in_the_parent() {
        let (rank, limit, addr) = (Rank(2), Duration::from_secs(3), SocketAddr::from(([127, 0, 0, 1], 80)));
        let [first, second] = [1, 2].map(|process| Claimant { ip: addr.ip(), process });
        let (ranks, what) = (RankList::from_iter([Rank(1), rank]), "it");
        let why = NoDescriptor::of(&std::io::Error::from_raw_os_error(libc::EMFILE)).unwrap();
        let all = [
            (
                BootstrapError::MissingRanks { ranks, nranks: 3, limit, strangers: None, calls: None },
                "ranks 5 and 7 of 8 never",
            ),
            (
                BootstrapError::Timeout { calls: None, by: None, what, ranks, limit },
                "waiting for ranks 5 and 7",
            ),
            (BootstrapError::DuplicateRank { rank, first, second }, "rank 7 came twice"),
            (
                BootstrapError::WorldSizeMismatch {
                    rank,
                    nranks: 3,
                    second,
                    expected: 2,
                    expected_by: Rank(1),
                    first,
                },
                "rank 7, process 2 at 127.0.0.1, says that there are 3 ranks, but rank 5, process 1 at",
            ),
            (
                BootstrapError::VersionMismatch { rank: Some(rank), addr, ours: 1, theirs: 3 },
                "rank 7 at 127.0.0.1:80",
            ),
            (BootstrapError::PeerLost { rank }, "rank 7 is gone"),
            (
                BootstrapError::Unreachable { from: Rank(1), rank, addr, errno: libc::ECONNREFUSED },
                "rank 5 cannot connect to rank 7",
            ),
            (BootstrapError::PeerAborted { rank, reason: what.into() }, "rank 7 aborted"),
            (BootstrapError::PeerLeft { rank }, "rank 7 had"),
            (BootstrapError::PeerWentOn { rank }, "rank 7 has"),
            (BootstrapError::Protocol { rank, what }, "rank 7 broke"),
            (BootstrapError::Altered { rank }, "bytes of rank 7"),
            (BootstrapError::BadMember { rank, nranks: 3 }, "rank 7 is"),
            (BootstrapError::NoDescriptor { rank: Some(rank), what, why }, "rank 7: cannot"),
        ];
        for (error, begin) in all {
            let mut named = 0;
            error.clone().each_rank(|_| named += 1);
            assert!(named > 0, "{error:?}");
            let here = error.renumbered(|place| Rank([0, 5, 7][place.index()]), 8);
            assert!(here.to_string().contains(begin), "{here}");
        }
        for error in [
            BootstrapError::Aborted,
            BootstrapError::NoDescriptor { rank: None, what, why },
            BootstrapError::RankOutOfRange { rank, nranks: 2 },
        ] {
            assert_eq!(error.clone().renumbered(|_| Rank(7), 8), error);
        }
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
