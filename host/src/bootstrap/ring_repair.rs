//! Layer: host / bootstrap.
//! Takes: the successor that this rank has lost.
//! Gives: [`RingRepair`]: a connection to the next rank that still answers, made without blocking the service's thread.
//! Never: tries more than [`CANDIDATES_MAX`] ranks: after the death of a whole job there is nothing left to find.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::channel::Channel;
use super::handshake::{Handshake, Hello, Purpose};
use super::secret::Ephemeral;
use super::sock;
use super::state::Shared;
use crate::os::{NoDescriptor, with_room};

const CANDIDATES_MAX: u32 = 64;
/// Back-off of the search when this rank has no file descriptor for it.
const REST: Duration = Duration::from_millis(50);

/// The search for a new successor, if one is running.
#[derive(Default)]
pub(crate) struct RingRepair {
    /// The rank tried last, or lost first.
    after: Option<Rank>,
    tried: u32,
    attempt: Option<Attempt>,
    /// The lost one, and ranks at whose addresses nobody listens any more, or who ended while they were connected to.
    refused: Vec<Rank>,
    /// End of the back-off for lack of a file descriptor.
    resting_until: Option<Instant>,
}

struct Attempt {
    stream: TcpStream,
    handshake: Handshake,
    connected: bool,
    until: Instant,
}

impl RingRepair {
    /// Starts the search after the loss of the successor; [`advance`](Self::advance) continues it.
    pub fn begin(&mut self, lost: Rank) {
        // It may have ended before it said anything, and then counts as nothing yet.
        *self = RingRepair { after: Some(lost), refused: vec![lost], ..RingRepair::default() };
    }

    /// Whether [`poll_fd`](Self::poll_fd) has something to poll.
    pub fn is_connecting(&self) -> bool {
        self.attempt.is_some()
    }

    /// Appends the descriptor to poll, if any.
    pub fn poll_fd<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if let Some(attempt) = &self.attempt {
            let writing = !attempt.connected || !attempt.handshake.output().is_empty();
            fds.push(PollFd::new(&attempt.stream, if writing { PollFlags::OUT } else { PollFlags::IN }));
        }
    }

    /// When to cancel the current attempt, or to start another.
    pub fn deadline(&self) -> Option<Instant> {
        self.attempt.as_ref().map(|attempt| attempt.until).or(self.resting_until)
    }

    /// Makes progress without blocking; returns the new successor once its connection is authenticated.
    pub fn advance(&mut self, now: Instant, shared: &Shared) -> Option<(Rank, Channel)> {
        loop {
            let after = self.after?;
            let Some(attempt) = &mut self.attempt else {
                if self.resting_until.is_some_and(|until| now < until) {
                    return None;
                }
                self.next_attempt(now, shared, after);
                continue;
            };
            if now < attempt.until {
                match attempt.step() {
                    Ok(false) => return None,
                    Ok(true) => {
                        let Attempt { stream, mut handshake, .. } = self.attempt.take()?;
                        match Channel::new(stream, &mut handshake) {
                            Ok(channel) => {
                                self.after = None;
                                return Some((after, channel));
                            }
                            Err(error) => self.note_refusal(after, &error),
                        }
                    }
                    Err(error) => self.note_refusal(after, &error),
                }
            }
            shared.incidents.tried(after);
            self.attempt = None;
        }
    }

    /// Whether the search has ended; successfully, if [`advance`](Self::advance) returned the successor.
    pub fn has_ended(&self) -> bool {
        self.after.is_none()
    }

    /// Takes the ranks that refused a connection since the search began.
    pub fn take_refused(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.refused)
    }

    fn note_refusal(&mut self, candidate: Rank, error: &io::Error) {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
        if matches!(error.kind(), ConnectionRefused | ConnectionReset | BrokenPipe | UnexpectedEof) {
            self.refused.push(candidate);
        }
    }

    /// Starts to connect to the next rank after `after` that is not known to be gone; ends the search if there is
    /// none.
    fn next_attempt(&mut self, now: Instant, shared: &Shared, after: Rank) {
        let state = shared.lock();
        let candidate = state.ring.successor_after(after).filter(|_| self.tried < CANDIDATES_MAX);
        let addr = candidate.and_then(|candidate| state.addrs.get(candidate.index()).copied());
        drop(state);
        let (Some(candidate), Some(addr)) = (candidate, addr) else {
            (self.after, self.resting_until) = (None, None);
            return;
        };
        let hello = Hello { purpose: Purpose::Ring, from: shared.me, to: candidate, tag: 0 };
        let begun = Attempt::begin(addr, hello, shared, now);
        if begun.is_err() {
            shared.incidents.tried(candidate);
        }
        self.go_on(now, candidate, begun);
    }

    /// Handles the start of an attempt to connect to `candidate`. A lack of file descriptors is no fault of that rank, and
    /// no other rank would do better, so the attempt is repeated later.
    fn go_on(&mut self, now: Instant, candidate: Rank, begun: io::Result<Attempt>) {
        let was_resting = self.resting_until.take().is_some();
        match begun {
            Err(error) if NoDescriptor::of(&error).is_some() => {
                if !was_resting {
                    tracing::warn!(rank = %candidate, %error, "cannot connect to a new neighbour, trying again");
                }
                self.resting_until = Some(now + REST);
            }
            begun => {
                self.after = Some(candidate);
                self.attempt = begun.inspect_err(|error| self.note_refusal(candidate, error)).ok();
                self.tried += 1;
            }
        }
    }
}

impl Attempt {
    fn begin(addr: SocketAddr, hello: Hello, shared: &Shared, now: Instant) -> io::Result<Attempt> {
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = with_room(|| socket_with(family, SocketType::STREAM, flags, None))?;
        match connect(&socket, &addr) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        let handshake =
            Handshake::initiator(shared.secret, hello, Ephemeral::random().map_err(io::Error::other)?);
        let handshake = handshake.by(shared.credentials.clone());
        Ok(Attempt { stream, handshake, connected: false, until: now + shared.config.handshake_timeout })
    }

    /// Whether the handshake is complete; an error ends the attempt.
    fn step(&mut self) -> io::Result<bool> {
        if !self.connected {
            if self.stream.peer_addr().is_err() {
                sockopt::socket_error(&self.stream)??;
                return Ok(false);
            }
            self.connected = true;
        }
        match sock::advance(&self.stream, &mut self.handshake) {
            Ok(None) => Ok(false),
            Ok(Some(Ok(_))) => Ok(true),
            Ok(Some(Err(_))) => Err(io::ErrorKind::PermissionDenied.into()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_without_descriptors_waits_for_one_and_passes_nobody_over() {
        let (mut repair, now) = (RingRepair::default(), Instant::now());
        repair.begin(Rank(3));
        repair.go_on(now, Rank(4), Err(Errno::MFILE.into()));
        assert_eq!((repair.after, repair.tried, repair.deadline()), (Some(Rank(3)), 0, Some(now + REST)));
        repair.go_on(now + REST, Rank(4), Err(Errno::NFILE.into()));
        assert_eq!((repair.after, repair.tried, repair.deadline()), (Some(Rank(3)), 0, Some(now + 2 * REST)));
        repair.go_on(now + 2 * REST, Rank(4), Err(Errno::CONNREFUSED.into()));
        assert_eq!((repair.after, repair.tried, repair.deadline()), (Some(Rank(4)), 1, None));
        assert_eq!(repair.take_refused(), [Rank(3), Rank(4)]);
    }
}
