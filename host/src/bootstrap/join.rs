//! Layer: host / bootstrap.
//! Takes: an id, a rank, the number of ranks.
//! Gives: the steps of joining: reach the root, register, learn the successor, connect to it.
//! Never: repeats an attempt that cannot succeed later: only a root that does not answer yet is retried.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;

use super::attempts::{Attempts, is_no_way};
use super::cancel::Cancel;
use super::channel::{Channel, DialError};
use super::config::BootstrapConfig;
use super::credentials::Credentials;
use super::error::{AuthFailure, BootstrapError, errno_of};
use super::frame;
use super::handshake::{Handshake, HandshakeError, Hello, PROTOCOL_VERSION, Purpose, ROOT};
use super::id::{RootKind, UniqueId};
use super::iface;
use super::rank_list::RankList;
use super::rendezvous::LINGER;
use super::rendezvous_wire::{KIND_REGISTER, KIND_REPLY, ROOT_PAYLOAD_MAX, Register, Reply, Withdrawal};
use super::root::LATE_RANKS_COME_WITHIN;
use super::secret::{Ephemeral, Secret};
use super::side::far_parent;
use super::sock::{self, Deadline};
use crate::os::{NoDescriptor, room_for};
use crate::wire::Message;

/// The root of a created id ran before the id existed: if its host answers for this long and it does not, it is gone.
const ROOT_GONE_AFTER: Duration = Duration::from_secs(3);
/// How long a cancelled rank looks for the root.
const LEAVING_TAKES: Duration = Duration::from_millis(500);
/// The same for a rank that cannot join, and whose others may only be starting.
const DECLINING_TAKES: Duration = Duration::from_secs(3);
/// How long a rank waits for a free port of its own.
const PORTS_FREE_WITHIN: Duration = Duration::from_secs(2);
const RETRY_FIRST: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_millis(100);
/// Files that a rank opens at least until it has joined, and what an error calls that; it opens more later.
const FILES_MIN: (usize, &str) = (7, "open the 7 files that a rank needs to join");

/// Connects to the root and authenticates by these credentials, with retries while no root answers. Gives those by which to go on.
pub(crate) fn reach_root(
    (id, credentials): (&UniqueId, &Credentials),
    me: Rank,
    config: &BootstrapConfig,
    cancel: &Cancel,
) -> Result<(Channel, Credentials), BootstrapError> {
    let addr = id.root_addr();
    let (patience, gone_after) = match id.kind() {
        RootKind::Created => (ROOT_GONE_AFTER.max(config.peer_dead_after), ROOT_GONE_AFTER),
        RootKind::ByRankZero | RootKind::ByRankZeroOfAnyJob => (Duration::MAX, Duration::MAX),
    };
    let patience = patience.min(config.timeout);
    let deadline = Deadline::after(patience).or_cancelled(cancel);
    let hello = Hello { purpose: Purpose::Register, from: me, to: ROOT, tag: 0 };
    let mut pause = RETRY_FIRST;
    let mut errno = libc::ETIMEDOUT;
    while deadline.left().is_some() {
        let handshake = Handshake::initiator(*id.secret(), hello, Ephemeral::random()?);
        let mut handshake = handshake.by(credentials.clone());
        let attempt = deadline.at_most(config.handshake_timeout);
        match Channel::dial(addr, &mut handshake, &attempt) {
            Ok(channel) => return Ok((channel, handshake.credentials())),
            Err(DialError::Handshake(error)) => return Err(distrusted(addr, error)),
            Err(DialError::Io(error)) if NoDescriptor::of(&error).is_some() => {
                return Err(BootstrapError::io("connect to the root", &error).of_rank(me));
            }
            Err(DialError::Io(error))
                if error.raw_os_error() == Some(libc::ENETUNREACH) && addr.ip().is_loopback() =>
            {
                return Err(BootstrapError::LoopbackDown { addr, there: iface::here() });
            }
            // The last attempt's timeout is less informative than the errors of the others.
            Err(DialError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(DialError::Io(error)) => {
                errno = connect_errno(&error);
                if !is_no_way(&error) && deadline.waited() >= gone_after {
                    break;
                }
            }
        }
        std::thread::sleep(deadline.left().map_or(Duration::ZERO, |left| pause.min(left)));
        pause = (pause * 2).min(RETRY_MAX);
    }
    // The ranks of a host have the same limit, as a rule, and a root that has reached it answers nobody: the address is not to blame.
    let (files, what) = FILES_MIN;
    room_for(files).map_err(|error| BootstrapError::io(what, &error).of_rank(me))?;
    Err(BootstrapError::RootUnreachable { addr, waited: deadline.waited().min(deadline.limit()), errno })
}

/// The address for this rank's listener: the configured one, else the local address of the connection to the root,
/// since the ranks that can reach that root can most likely reach this address.
pub(crate) fn listen_ip(
    (me, root, kind): (Rank, &TcpStream, RootKind),
    config: &BootstrapConfig,
) -> Result<IpAddr, BootstrapError> {
    if let Some(ip) = config.bind_addr {
        return Ok(ip);
    }
    let local =
        root.local_addr().map_err(|error| BootstrapError::io("find the address towards the root", &error))?;
    // Hosts resolve their own name to 127.0.1.1 and similar addresses; the other hosts resolve it to an address of an
    // interface, and need one from us.
    let remote = root.peer_addr().map_err(|error| BootstrapError::io("find the root's address", &error))?;
    let ip = match &config.interfaces {
        None if !is_own_name(remote.ip()) => local.ip(),
        filter => iface::choose(&iface::list()?, filter.as_ref(), config.prefer_ipv6)?,
    };
    match far_rank_0(root, kind) {
        Some(root) if ip.is_loopback() => {
            Err(BootstrapError::OnlyLoopback { rank: me, ip, root, there: iface::here() })
        }
        _ => Ok(ip),
    }
}

/// Where rank 0 runs the root, if that is another host. (Who makes an id beforehand need not be on a host with ranks.)
fn far_rank_0(root: &TcpStream, kind: RootKind) -> Option<IpAddr> {
    let ip = root.peer_addr().ok()?.ip();
    (kind != RootKind::Created && !is_own(ip)).then_some(ip)
}

/// Whether it is this host's.
pub(super) fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || iface::list().is_ok_and(|all| all.iter().any(|interface| interface.addr == ip))
}

fn is_own_name(ip: IpAddr) -> bool {
    ip.is_loopback() && ip != Ipv4Addr::LOCALHOST && ip != Ipv6Addr::LOCALHOST
}

/// Whom a rank connects to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assigned {
    /// The listener of the successor in the ring.
    pub successor: SocketAddr,
    /// The listener of the parent in the tree, if that is no neighbour in the ring.
    pub parent: Option<SocketAddr>,
}

/// Whether the neighbours can be reached, as far as their addresses tell. A rank on another host than rank 0 reaches none at a loopback: on its
/// own host [`listen_ip`] refuses such an address.
///
/// # Errors
/// [`BootstrapError::Unreachable`]: a neighbour on rank 0's host has named its loopback.
pub(crate) fn check_reach(
    (me, nranks): (Rank, u32),
    assigned: &Assigned,
    (root, kind): (&TcpStream, RootKind),
) -> Result<(), BootstrapError> {
    let successor = (Rank((me.0 + 1) % nranks), assigned.successor);
    let parent = far_parent(me, nranks).zip(assigned.parent);
    let of_loopback =
        [Some(successor), parent].into_iter().flatten().find(|(_, addr)| addr.ip().is_loopback());
    match of_loopback {
        Some((rank, addr)) if far_rank_0(root, kind).is_some() => {
            Err(BootstrapError::Unreachable { from: me, rank, addr, errno: libc::ECONNREFUSED })
        }
        _ => Ok(()),
    }
}

/// Registers and waits for the root's answer: the neighbours' addresses.
pub(crate) fn register(
    root: &mut Channel,
    id: &UniqueId,
    (me, nranks): (Rank, u32),
    listener: SocketAddr,
    config: &BootstrapConfig,
    cancel: &Cancel,
) -> Result<Assigned, BootstrapError> {
    // Of an id that was not created beforehand rank 0's process runs the root.
    let runs_root = (id.kind() != RootKind::Created).then_some(Rank(0));
    let lost = |_: io::Error| match runs_root {
        Some(rank) => BootstrapError::PeerLost { rank },
        None => BootstrapError::RootLost { addr: id.root_addr() },
    };
    // The root names the missing ranks when this rank's timeout is over, or another's: leave it the time to report them.
    let patience = config.timeout.saturating_add(config.handshake_timeout).saturating_add(LINGER);
    let deadline = Deadline::after(patience).or_cancelled(cancel);
    let mut message = Vec::new();
    let mine = Register::of_this_process(nranks, listener, config.timeout);
    frame::push(&mut message, KIND_REGISTER, &[&mine.to_bytes()]);
    root.write_all(&message, &deadline).map_err(lost)?;
    let frame = root.read_frame(ROOT_PAYLOAD_MAX, &deadline).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => BootstrapError::Timeout {
            calls: None,
            by: None,
            what: "waiting for the root to say that all ranks have come",
            ranks: runs_root.into_iter().collect(),
            limit: config.timeout,
        },
        io::ErrorKind::InvalidData => {
            BootstrapError::AuthFailed { addr: id.root_addr(), why: AuthFailure::Altered }
        }
        _ => lost(error),
    })?;
    let successor_is = Rank(me.0.wrapping_add(1) % nranks.max(1));
    match (frame.kind, Reply::from_bytes(&frame.payload)) {
        (KIND_REPLY, Ok(Reply::Assigned { successor, listener, parent }))
            if successor == successor_is && parent.is_some() == far_parent(me, nranks).is_some() =>
        {
            Ok(Assigned { successor: listener, parent })
        }
        (KIND_REPLY, Ok(Reply::Failed(failure))) => Err(failure.into()),
        _ => Err(BootstrapError::Protocol { rank: Rank(0), what: "the root's answer makes no sense" }),
    }
}

/// A rank that has not found the root, and does not join, tells it, if it can be found at once. Returns whether it could.
pub(crate) fn leave_unmet(
    root: (&UniqueId, &Credentials),
    (me, nranks): (Rank, u32),
    config: &BootstrapConfig,
    why: Withdrawal,
) -> bool {
    let takes = if why.is_early() { DECLINING_TAKES } else { LEAVING_TAKES };
    let config = BootstrapConfig { timeout: takes.min(config.timeout), ..config.clone() };
    let reached = reach_root(root, me, &config, &Cancel::default());
    let found = !matches!(reached, Err(BootstrapError::RootUnreachable { .. }));
    if let Ok((mut root, _)) = reached {
        withdraw(&mut root, nranks, why);
    }
    found
}

/// Tells the root that this rank does not join, so that the others do not wait for it, and do not take it for dead. Returns whether that was too
/// late: all had registered, this one too, and some are about to connect to it.
pub(crate) fn withdraw(root: &mut Channel, nranks: u32, why: Withdrawal) -> bool {
    let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let mut message = Vec::new();
    let mine = Register::of_this_process(nranks, nowhere, Duration::MAX);
    let mine = Register { withdraws: Some(why), ..mine };
    frame::push(&mut message, KIND_REGISTER, &[&mine.to_bytes()]);
    if root.write_all(&message, &Deadline::after(RETRY_MAX)).is_err() {
        return false;
    }
    // Until the answer comes the connection stays open: its end before the message is read would be a death.
    // A rank 0 stays for those that come late.
    let patience = LEAVING_TAKES + if why.is_early() { LATE_RANKS_COME_WITHIN } else { Duration::ZERO };
    let answer = root.read_frame(ROOT_PAYLOAD_MAX, &Deadline::after(patience));
    let reply = answer.ok().and_then(|frame| Reply::from_bytes(&frame.payload).ok());
    matches!(reply, Some(Reply::Assigned { .. }))
}

/// Connects to another rank's listener. Its process was alive when its address was published: if nobody listens there any more, or the
/// connection ends, it is lost. What a firewall or this host's own lack of ports does says nothing of it, nor does a network that is
/// silent for less than `outage`.
pub(crate) fn dial_peer(
    (secret, credentials): (Secret, &Credentials),
    hello: Hello,
    addr: SocketAddr,
    deadline: &Deadline,
    outage: Duration,
) -> Result<Channel, BootstrapError> {
    let peer = hello.to;
    let mut attempts = Attempts::begin(addr, Instant::now(), outage);
    let dialed = loop {
        let handshake = Handshake::initiator(secret, hello, Ephemeral::random()?);
        let dialed = Channel::dial(addr, &mut handshake.by(credentials.clone()), deadline);
        let pause = match &dialed {
            // Ports of connections that have just ended become free again.
            Err(DialError::Io(error))
                if error.kind() == io::ErrorKind::AddrNotAvailable
                    && deadline.waited() < PORTS_FREE_WITHIN =>
            {
                Some(RETRY_MAX)
            }
            Err(DialError::Io(error)) => attempts.again(Instant::now(), error),
            _ => None,
        };
        let Some(pause) = pause.filter(|pause| deadline.left().is_some_and(|left| left > *pause)) else {
            break dialed;
        };
        std::thread::sleep(pause);
    };
    dialed.map_err(|error| match error {
        DialError::Handshake(error) => distrusted(addr, error),
        DialError::Io(error) if error.kind() == io::ErrorKind::TimedOut => BootstrapError::Timeout {
            calls: None,
            by: None,
            what: "connecting to a peer",
            ranks: RankList::from_iter([peer]),
            limit: deadline.limit(),
        },
        DialError::Io(error) if NoDescriptor::of(&error).is_some() => {
            BootstrapError::io("connect to a peer", &error).of_rank(hello.from)
        }
        DialError::Io(error) if !is_death(&error, addr, attempts.was_there()) => {
            BootstrapError::Unreachable { from: hello.from, rank: peer, addr, errno: connect_errno(&error) }
        }
        DialError::Io(error) => {
            tracing::warn!(%peer, %addr, %error, "cannot connect to a peer");
            BootstrapError::PeerLost { rank: peer }
        }
    })
}

/// Whether a failed connection shows that nobody listens any more: it ended, or this host itself refuses it. Another host's refusal
/// may be a firewall's, unless it accepted one before.
fn is_death(error: &io::Error, addr: SocketAddr, was_there: bool) -> bool {
    // A rank that had to leave registers nowhere.
    let is_nowhere = addr.ip().is_unspecified();
    let is_refusal = error.kind() == io::ErrorKind::ConnectionRefused;
    is_nowhere || sock::is_end(error) || is_refusal && (was_there || is_own(addr.ip()))
}

fn distrusted(addr: SocketAddr, error: HandshakeError) -> BootstrapError {
    match error {
        HandshakeError::Version { theirs, .. } => {
            BootstrapError::VersionMismatch { rank: None, addr, ours: PROTOCOL_VERSION, theirs }
        }
        HandshakeError::Auth(why) => BootstrapError::AuthFailed { addr, why },
    }
}

/// Error numbers for errors that `std` and this module create without one.
fn connect_errno(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        io::ErrorKind::UnexpectedEof => libc::ECONNRESET,
        _ => errno_of(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::acceptor::Acceptor;
    use rustix::event::PollFlags;
    use std::net::TcpListener;

    const OUTAGE: Duration = Duration::from_secs(30);
    /// Long enough for a listener to have let somebody go.
    const LATE: Duration = Duration::from_millis(300);

    #[test]
    fn only_an_end_and_a_refusal_of_ones_own_host_are_a_death() {
        let here = SocketAddr::from(([127, 0, 0, 1], 9));
        let there = SocketAddr::from(([192, 0, 2, 1], 9));
        let of = |errno| io::Error::from_raw_os_error(errno);
        for addr in [here, there] {
            assert!(is_death(&of(libc::ECONNRESET), addr, false));
            for errno in
                [libc::EADDRNOTAVAIL, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EPERM, libc::EACCES]
            {
                assert!(!is_death(&of(errno), addr, false), "{errno}");
            }
        }
        let refused = of(libc::ECONNREFUSED);
        assert!(is_death(&refused, here, false) && !is_death(&refused, there, false));
        assert!(is_death(&refused, there, true), "it accepted a connection before");
    }

    /// No stream leads to the broadcast address.
    #[test]
    fn a_peer_that_cannot_be_reached_is_not_lost() {
        let hello = Hello { purpose: Purpose::Ring, from: Rank(0), to: Rank(1), tag: 0 };
        let addr = SocketAddr::from(([255, 255, 255, 255], 4711));
        let by = (Secret::from_seed(b""), &Credentials::Believed);
        let error = dial_peer(by, hello, addr, &Deadline::after(Duration::from_secs(3)), OUTAGE).unwrap_err();
        assert!(matches!(error, BootstrapError::Unreachable { rank: Rank(1), .. }), "{error:?}");
        assert!(
            error.to_string().starts_with("rank 0 cannot connect to rank 1 at 255.255.255.255:4711"),
            "{error}"
        );
    }

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = sock::listen([127, 0, 0, 1].into(), 0).expect("a port");
        let addr = listener.local_addr().expect("an address");
        (listener, addr)
    }

    /// Accepts a connection, says nothing for so long, and ends it.
    fn let_one_go(listener: &TcpListener, after: Duration) {
        let begun = Instant::now();
        while let Err(error) = listener.accept().map(|_| std::thread::sleep(after)) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn dial(addr: SocketAddr) -> Result<Channel, BootstrapError> {
        let hello = Hello { purpose: Purpose::Message, from: Rank(0), to: Rank(1), tag: 7 };
        let by = (Secret::from_seed(b""), &Credentials::Believed);
        dial_peer(by, hello, addr, &Deadline::after(Duration::from_secs(20)), OUTAGE)
    }

    /// An outage of 8 s ended jobs that were about to connect: listeners wait 5 s for who is to prove itself.
    #[test]
    fn who_was_let_go_by_a_listener_connects_again() {
        let (listener, addr) = listener();
        let dialing = std::thread::spawn(move || dial(addr).map(drop));
        let_one_go(&listener, LATE);
        let mut acceptor = Acceptor::new(listener, Secret::from_seed(b""), Rank(1), Duration::from_secs(20));
        let (mut accepted, begun) = (Vec::new(), Instant::now());
        while accepted.is_empty() && begun.elapsed() < Duration::from_secs(20) {
            acceptor.drive(Instant::now(), &[PollFlags::IN, PollFlags::IN], &mut accepted);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(dialing.join().expect("no panic"), Ok(()));
        assert_eq!(accepted.first().map(|accepted| accepted.hello.tag), Some(7));
    }

    #[test]
    fn a_peer_that_dies_while_one_connects_is_lost_soon_or_late() {
        for after in [Duration::ZERO, LATE] {
            let (listener, addr) = listener();
            let begun = Instant::now();
            let dialing = std::thread::spawn(move || dial(addr).map(drop));
            let_one_go(&listener, after);
            drop(listener);
            assert_eq!(
                dialing.join().expect("no panic"),
                Err(BootstrapError::PeerLost { rank: Rank(1) }),
                "{after:?}"
            );
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        }
    }
}
