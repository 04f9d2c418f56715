//! Layer: host / bootstrap.
//! Takes: which rank the ring has lost as this one's successor.
//! Gives: [`Heal`]: a connection to the next rank that still answers, made without blocking the service's thread.
//! Never: tries more than [`HEIRS_MAX`] ranks: after a whole job was killed there is nothing left to find.

use std::net::TcpStream;
use std::time::Instant;

use oxccl_shared::abi::Rank;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::handshake::{Handshake, Hello, Purpose};
use super::secret::Nonce;
use super::service::Shared;
use super::sock;

const HEIRS_MAX: u32 = 64;

/// The search for a new successor, when there is one.
#[derive(Default)]
pub(crate) struct Heal {
    /// The rank tried last, or lost first.
    after: Option<Rank>,
    tried: u32,
    attempt: Option<Attempt>,
}

struct Attempt {
    stream: TcpStream,
    handshake: Handshake,
    connected: bool,
    until: Instant,
}

impl Heal {
    /// The successor is gone; [`advance`](Self::advance) looks for another.
    pub fn begin(&mut self, lost: Rank) {
        *self = Heal { after: Some(lost), tried: 0, attempt: None };
    }

    /// Whether [`poll_fd`](Self::poll_fd) has something to poll.
    pub fn is_connecting(&self) -> bool {
        self.attempt.is_some()
    }

    /// Appends what is to be polled, if anything.
    pub fn poll_fd<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if let Some(attempt) = &self.attempt {
            let writing = !attempt.connected || !attempt.handshake.output().is_empty();
            fds.push(PollFd::new(&attempt.stream, if writing { PollFlags::OUT } else { PollFlags::IN }));
        }
    }

    /// When the present attempt is to be given up.
    pub fn deadline(&self) -> Option<Instant> {
        self.attempt.as_ref().map(|attempt| attempt.until)
    }

    /// Goes on as far as possible without waiting; gives the new successor once its connection is authenticated.
    pub fn advance(&mut self, now: Instant, shared: &Shared) -> Option<(Rank, TcpStream)> {
        loop {
            let after = self.after?;
            let Some(attempt) = &mut self.attempt else {
                self.next_attempt(now, shared, after);
                continue;
            };
            if now < attempt.until {
                match attempt.step() {
                    Ok(false) => return None,
                    Ok(true) => {
                        let stream = self.attempt.take()?.stream;
                        self.after = None;
                        return Some((after, stream));
                    }
                    Err(()) => {}
                }
            }
            self.attempt = None;
        }
    }

    /// Begins to connect to the next rank after `after` that is not known to be gone; ends the search when there is
    /// none.
    fn next_attempt(&mut self, now: Instant, shared: &Shared, after: Rank) {
        let state = shared.lock();
        let heir = state.ring.heir(after).filter(|_| self.tried < HEIRS_MAX);
        let addr = heir.and_then(|heir| state.addrs.get(heir.index()).copied());
        drop(state);
        self.after = heir.filter(|_| addr.is_some());
        self.tried += 1;
        if let (Some(heir), Some(addr)) = (self.after, addr) {
            let hello = Hello { purpose: Purpose::Ring, from: shared.me.0, to: heir.0, tag: 0 };
            self.attempt = Attempt::begin(addr, hello, shared, now);
        }
    }
}

impl Attempt {
    /// `None` when it fails at once: the next rank is tried then.
    fn begin(addr: std::net::SocketAddr, hello: Hello, shared: &Shared, now: Instant) -> Option<Attempt> {
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None).ok()?;
        match connect(&socket, &addr) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(_) => return None,
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).ok()?;
        let handshake = Handshake::initiator(shared.secret, hello, Nonce::random().ok()?);
        Some(Attempt { stream, handshake, connected: false, until: now + shared.config.handshake_timeout })
    }

    /// Whether the handshake is over; an error ends the attempt.
    fn step(&mut self) -> Result<bool, ()> {
        if !self.connected {
            if self.stream.peer_addr().is_err() {
                let failed = !matches!(sockopt::socket_error(&self.stream), Ok(Ok(())));
                return if failed { Err(()) } else { Ok(false) };
            }
            self.connected = true;
        }
        match sock::advance(&self.stream, &mut self.handshake) {
            Ok(None) => Ok(false),
            Ok(Some(Ok(_))) => Ok(true),
            Ok(Some(Err(_))) | Err(_) => Err(()),
        }
    }
}
