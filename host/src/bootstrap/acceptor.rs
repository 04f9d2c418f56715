//! Layer: host / bootstrap.
//! Takes: a listener, the secret, events of poll(2).
//! Gives: [`Acceptor`]: authenticated connections of the job, with their rank and purpose.
//! Never: lets a stranger delay a legitimate rank. Every connection has its own handshake and deadline, one poll(2)
//! serves all, their number is bounded by a small share of the process's descriptors, and a new one replaces the oldest
//! unauthenticated one. Nor starve the process: where descriptors run out, the oldest unauthenticated one gives its back.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;
use rustix::event::{PollFd, PollFlags};

use super::channel::Channel;
use super::credentials::Credentials;
use super::error::{AuthFailure, Strangers};
use super::handshake::{Handshake, HandshakeError, Hello};
use super::secret::{Ephemeral, Secret};
use super::sock;
use crate::os::{NoDescriptor, describe, descriptors_max, raise_limit};

/// Most connections in the handshake at once, and the share of the process's descriptors that they may take.
const PENDING_MAX: usize = 512;
const PENDING_SHARE: u64 = 8;
/// The same for each further thread at the same listener.
const HELPERS_PENDING_MAX: usize = 32;
/// Before this age no connection is evicted: a legitimate one takes a round trip or two. Further ones wait in the kernel's queue.
const YOUNG: Duration = Duration::from_millis(250);
/// Connections accepted per turn, so that a flood does not starve the others.
const ACCEPTS_PER_TURN: usize = 64;
/// Back-off of accepting when the process has no file descriptor left, instead of spinning.
const REST: Duration = Duration::from_millis(50);
/// Failures for lack of a descriptor belong together if they are no farther apart.
const GOES_ON: Duration = Duration::from_millis(200);
/// After a back-off of this long without descriptors, if no stranger holds one, none will be freed.
const STARVED_AFTER: Duration = Duration::from_secs(2);
/// How soon a rank hears that others leave, one of which ended while it connected here.
const DEPARTURES_HEARD_WITHIN: Duration = Duration::from_millis(500);
/// Connections that have ended and wait to be judged.
const ENDED_MAX: usize = 64;
/// So many refusals, and so many back-offs, are logged one by one, then only at powers of two.
const LOGGED_ONE_BY_ONE: u64 = 32;

/// A connection that has passed the handshake.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub channel: Channel,
    pub remote: SocketAddr,
    pub hello: Hello,
}

/// A rank that has the job's secret, and speaks another version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Foreign {
    pub rank: Rank,
    pub addr: SocketAddr,
    pub version: u16,
}

#[derive(Debug)]
struct Pending {
    stream: TcpStream,
    remote: SocketAddr,
    handshake: Handshake,
    since: Instant,
    deadline: Instant,
}

#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: TcpListener,
    secret: Secret,
    credentials: Credentials,
    me: Rank,
    timeout: Duration,
    pending_max: usize,
    pending: Vec<Pending>,
    resting_until: Option<Instant>,
    /// Until the oldest of too many connections may be evicted.
    full_until: Option<Instant>,
    refusals: u64,
    /// Number of back-offs.
    rests: u64,
    /// Since when every connection found no descriptor left, and the last time.
    starved: Option<(Instant, Instant, NoDescriptor)>,
    /// The newest, until it is taken.
    other_version: Option<Foreign>,
    /// Those that hold another secret, until they are taken.
    strangers: Option<Strangers>,
    /// Whether ranks may be leaving: one that searches for a new neighbour may then end while it connects here.
    ranks_leave: bool,
    /// Whether it may be heard of later that ranks leave, so that connections which end are judged after a while.
    judges_later: bool,
    /// Connections that ended in the handshake: from where, how, and when to judge them.
    ended: Vec<(SocketAddr, io::Error, Instant)>,
}

impl Acceptor {
    /// Serves `listener`, which must not block, as rank `me` (or the root).
    pub fn new(listener: TcpListener, secret: Secret, me: Rank, timeout: Duration) -> Acceptor {
        Acceptor {
            listener,
            secret,
            credentials: Credentials::Believed,
            me,
            timeout,
            pending_max: PENDING_MAX,
            pending: Vec::new(),
            resting_until: None,
            full_until: None,
            refusals: 0,
            rests: 0,
            starved: None,
            other_version: None,
            strangers: None,
            ranks_leave: false,
            judges_later: false,
            ended: Vec::new(),
        }
    }

    /// The same by these credentials.
    pub fn by(self, credentials: Credentials) -> Acceptor {
        Acceptor { credentials, ..self }
    }

    /// The same for a rank that has neighbours which leave, and search for others.
    pub fn of_neighbours(self) -> Acceptor {
        Acceptor { judges_later: true, ..self }
    }

    /// Another acceptor at the same listener, for another thread. Few connections prove themselves to it at once: those beyond that wait for a
    /// thread that is free.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn helper(&self) -> io::Result<Acceptor> {
        let listener = self.listener.try_clone()?;
        let helper = Acceptor::new(listener, self.secret, self.me, self.timeout).by(self.credentials.clone());
        Ok(Acceptor { pending_max: HELPERS_PENDING_MAX, ..helper })
    }

    /// From now on a connection that ends unauthenticated is most likely no stranger's, and no warning.
    pub fn expect_departures(&mut self) {
        self.ranks_leave = true;
        for (remote, error, _) in self.ended.drain(..) {
            log_departure(remote, &error);
        }
    }

    /// Appends the descriptors to poll; [`drive`](Self::drive) expects the results in the same order.
    pub fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let listening = if self.is_paused() { PollFlags::empty() } else { PollFlags::IN };
        fds.push(PollFd::new(&self.listener, listening));
        for pending in &self.pending {
            let flags = if pending.handshake.output().is_empty() { PollFlags::IN } else { PollFlags::OUT };
            fds.push(PollFd::new(&pending.stream, flags));
        }
    }

    /// Number of results that [`drive`](Self::drive) expects.
    pub fn poll_len(&self) -> usize {
        1 + self.pending.len()
    }

    /// Latest time of the next call of [`drive`](Self::drive).
    pub fn deadline(&self) -> Option<Instant> {
        // The peer that waited for a descriptor may have gone: then no other event ends the state.
        let over = self.starved.map(|(_, last, _)| last + GOES_ON);
        let over = over.filter(|_| self.resting_until.is_none());
        self.pending
            .iter()
            .map(|pending| pending.deadline)
            .chain(self.resting_until)
            .chain(self.full_until)
            .chain(over)
            .chain(self.ended.iter().map(|(.., at)| *at))
            .min()
    }

    /// Serves the sockets that poll(2) reported and those that timed out; appends authenticated connections to
    /// `accepted`.
    pub fn drive(&mut self, now: Instant, ready: &[PollFlags], accepted: &mut Vec<Accepted>) {
        let (listener_ready, pending_ready) =
            ready.split_first().map_or((false, &[][..]), |(first, rest)| {
                (!first.is_empty(), rest) //
            });
        for (i, pending) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            let is_ready = pending_ready.get(i).is_some_and(|flags| !flags.is_empty());
            if now >= pending.deadline {
                let other_version = pending.handshake.other_version();
                let late: &dyn std::fmt::Display = &"it did not prove in time that it belongs to the job";
                self.refuse(pending.remote, other_version.as_ref().map_or(late, |error| error));
            } else if is_ready {
                self.advance(now, pending, accepted);
            } else {
                self.pending.push(pending);
            }
        }
        // They stand in the order of their end.
        let due = self.ended.iter().take_while(|(.., at)| now >= *at).count();
        for (remote, error, _) in self.ended.drain(..due).collect::<Vec<_>>() {
            self.refuse(remote, &error);
        }
        if self.resting_until.is_some_and(|until| now >= until) {
            self.resting_until = None;
        }
        if self.full_until.is_some_and(|until| now >= until || self.pending.len() < self.pending_max()) {
            self.full_until = None;
        }
        // An old failure does not count: the accept after the last waiting peer may find no descriptor, and no peer.
        self.starved = self.starved.filter(|(_, last, _)| now.saturating_duration_since(*last) < GOES_ON);
        if listener_ready && !self.is_paused() {
            self.accept(now, accepted);
        }
    }

    /// Whether peers wait in the kernel's queue: no descriptor was left, or too many peers prove themselves now.
    fn is_paused(&self) -> bool {
        self.resting_until.is_some() || self.full_until.is_some()
    }

    /// Whether a peer has waited long to be accepted, and no descriptor was freed, as of the last
    /// [`drive`](Self::drive).
    pub fn starved(&self, now: Instant) -> Option<NoDescriptor> {
        let (since, _, none_left) = self.starved?;
        (now.saturating_duration_since(since) >= STARVED_AFTER).then_some(none_left)
    }

    /// Most connections in the handshake now: the limit of descriptors may change.
    fn pending_max(&self) -> usize {
        usize::try_from(descriptors_max() / PENDING_SHARE).unwrap_or(PENDING_MAX).clamp(4, self.pending_max)
    }

    fn accept(&mut self, now: Instant, accepted: &mut Vec<Accepted>) {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.pending.len() >= self.pending_max()
                && !self.evict(now, "too many connections that prove nothing are open")
            {
                self.full_until = self.pending.first().map(|oldest| oldest.since + YOUNG);
                return;
            }
            match self.listener.accept() {
                Ok((stream, remote)) => {
                    self.starved = None;
                    self.begin(now, stream, remote, accepted);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The connection died between arriving and being accepted.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR)) => {}
                Err(error) => {
                    let none_left = NoDescriptor::of(&error);
                    if none_left.is_some() && self.evict(now, "this process needs its descriptor for another")
                    {
                        continue;
                    }
                    if !(matches!(none_left, Some(NoDescriptor::Process { .. })) && raise_limit()) {
                        let since = self.starved.map_or(now, |(since, ..)| since);
                        // Unauthenticated connections will free theirs in time.
                        let since = if self.pending.is_empty() { since } else { now };
                        self.starved = none_left.map(|none_left| (since, now, none_left));
                        self.rests += 1;
                        if is_logged(self.rests) {
                            let error = describe(&error);
                            tracing::warn!(%error, times = self.rests, "cannot accept connections, trying again");
                        }
                        self.resting_until = Some(now + REST);
                    }
                    return;
                }
            }
        }
    }

    fn begin(&mut self, now: Instant, stream: TcpStream, remote: SocketAddr, accepted: &mut Vec<Accepted>) {
        let prepared = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        if let Err(error) = prepared {
            return self.refuse(remote, &error);
        }
        let ephemeral = match Ephemeral::random() {
            Ok(ephemeral) => ephemeral,
            Err(error) => return self.refuse(remote, &error),
        };
        let handshake = Handshake::acceptor(self.secret, self.me, ephemeral).by(self.credentials.clone());
        self.advance(
            now,
            Pending { stream, remote, handshake, since: now, deadline: now + self.timeout },
            accepted,
        );
    }

    /// Refuses the oldest connection in the handshake, if it is old enough; returns whether it did.
    fn evict(&mut self, now: Instant, why: &'static str) -> bool {
        // They stand in the order of their coming.
        if self.pending.first().is_none_or(|oldest| now < oldest.since + YOUNG) {
            return false;
        }
        let oldest = self.pending.remove(0);
        self.refuse(oldest.remote, &why);
        true
    }

    fn advance(&mut self, now: Instant, mut pending: Pending, accepted: &mut Vec<Accepted>) {
        let advanced = sock::advance(&pending.stream, &mut pending.handshake);
        // Who speaks another version may end when it hears so.
        if let (Err(_), Some(error)) = (&advanced, pending.handshake.other_version()) {
            return self.distrust(pending.remote, error);
        }
        match advanced {
            Ok(None) => self.pending.push(pending),
            Ok(Some(Ok(hello))) => {
                let Pending { stream, remote, mut handshake, .. } = pending;
                match Channel::new(stream, &mut handshake) {
                    Ok(channel) => accepted.push(Accepted { channel, remote, hello }),
                    Err(error) => self.refuse(remote, &error),
                }
            }
            Ok(Some(Err(error))) => self.distrust(pending.remote, error),
            Err(error) if self.ranks_leave && sock::is_end(&error) => log_departure(pending.remote, &error),
            Err(error) if self.judges_later && sock::is_end(&error) && self.ended.len() < ENDED_MAX => {
                self.ended.push((pending.remote, error, now + DEPARTURES_HEARD_WITHIN));
            }
            Err(error) => self.refuse(pending.remote, &error),
        }
    }

    fn distrust(&mut self, remote: SocketAddr, why: HandshakeError) {
        if let HandshakeError::Version { theirs, proved: Some(rank) } = why {
            self.other_version = Some(Foreign { rank, addr: remote, version: theirs });
        }
        if why == HandshakeError::Auth(AuthFailure::WrongSecret) {
            Strangers { count: 1, last: remote }.add_to(&mut self.strangers);
        }
        self.refuse(remote, &why);
    }

    /// Takes a rank of the job that speaks another version, and was refused.
    pub fn take_other_version(&mut self) -> Option<Foreign> {
        self.other_version.take()
    }

    /// Takes those that were refused because they hold another secret.
    pub fn take_strangers(&mut self) -> Option<Strangers> {
        self.strangers.take()
    }

    /// Connections refused so far, with those that will be unless ranks are heard to leave.
    pub fn refusals(&self) -> u64 {
        self.refusals + self.ended.len() as u64
    }

    /// Logs why `remote` was refused; dropping the connection closes it.
    pub fn refuse(&mut self, remote: SocketAddr, why: &dyn std::fmt::Display) {
        self.refusals += 1;
        if is_logged(self.refusals) {
            tracing::warn!(%remote, %why, refusals = self.refusals, "refused a connection");
        }
    }
}

fn log_departure(remote: SocketAddr, error: &io::Error) {
    tracing::debug!(%remote, %error, "a connection to the bootstrap ended in the handshake");
}

/// Whether to log the event of this number: strangers, and a process without descriptors, could fill disks.
fn is_logged(times: u64) -> bool {
    times <= LOGGED_ONE_BY_ONE || times.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves what is ready now, as of `now`.
    fn drive(acceptor: &mut Acceptor, now: Instant) {
        let mut fds = Vec::new();
        acceptor.poll_fds(&mut fds);
        let until = Instant::now() + Duration::from_millis(20);
        sock::poll(&mut fds, Some(until)).expect("sockets");
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        acceptor.drive(now, &ready, &mut Vec::new());
    }

    /// A rank that left while it connected here, as the search for a new neighbour does, was a warning if this rank had not heard yet that
    /// ranks leave.
    #[test]
    fn a_connection_that_ends_is_no_warning_if_ranks_are_heard_to_leave_soon() {
        for (leave, refusals) in [(true, 0), (false, 1)] {
            let listener = sock::listen(std::net::Ipv4Addr::LOCALHOST.into(), 0).expect("a port");
            let addr = listener.local_addr().expect("an address");
            let secret = Secret::from_seed(b"s");
            let mut acceptor =
                Acceptor::new(listener, secret, Rank(0), Duration::from_secs(20)).of_neighbours();
            drop(TcpStream::connect(addr).expect("it listens"));
            let since = Instant::now();
            while acceptor.ended.is_empty() {
                assert!(since.elapsed() < Duration::from_secs(20), "its end is seen");
                drive(&mut acceptor, since);
            }
            assert_eq!(acceptor.deadline(), Some(since + DEPARTURES_HEARD_WITHIN));
            assert_eq!((acceptor.refusals(), acceptor.refusals), (1, 0), "counted, and not logged");
            if leave {
                acceptor.expect_departures();
            }
            drive(&mut acceptor, since + DEPARTURES_HEARD_WITHIN);
            assert_eq!(acceptor.refusals(), refusals);
        }
    }

    #[test]
    fn a_day_without_descriptors_is_some_dozen_lines() {
        let rests_in_a_day = 24 * 3600 * 1000 / REST.as_millis() as u64;
        let lines = (1..=rests_in_a_day).filter(|times| is_logged(*times)).count();
        assert!((32..50).contains(&lines), "{lines}");
    }
}
