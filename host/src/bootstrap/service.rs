//! Layer: host / bootstrap.
//! Takes: a rank's listener and, once they are there, its ring connections.
//! Gives: the one thread of a communicator that does all waiting for its bootstrap sockets, and [`Shared`], through
//! which the owner talks to it.
//! Never: spins (it sleeps in poll(2) until something happens), calls the owner back with the lock held, or outlives
//! the owner's close by more than [`CLOSE_MAX`].

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::acceptor::{Accepted, Acceptor};
use super::config::BootstrapConfig;
use super::error::BootstrapError;
use super::handshake::Purpose;
use super::heal::Heal;
use super::ring::{PeerEvent, Ring, Side};
use super::secret::Secret;
use super::sock::{self, Deadline};
use crate::os::{NoDescriptor, with_room};

/// How long a goodbye may take to be written and answered by the neighbours' closing.
pub(crate) const CLOSE_MAX: Duration = Duration::from_millis(500);
/// How many authenticated connections may wait for the owner to accept them.
const PARKED_MAX: usize = 4096;
const READ_BYTES: usize = 64 << 10;

/// Called for every [`PeerEvent`], on the service's thread.
pub type OnEvent = Box<dyn Fn(PeerEvent) + Send>;

/// What the owner wants of the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    No,
    /// Say goodbye, then end.
    Leave,
    /// End as a process does that is killed.
    Die,
}

/// What owner and thread share.
pub(crate) struct Shared {
    pub me: Rank,
    pub nranks: u32,
    pub secret: Secret,
    pub config: BootstrapConfig,
    state: Mutex<State>,
    changed: Condvar,
    wake: OwnedFd,
}

pub(crate) struct State {
    pub ring: Ring,
    /// The connection to the successor, on its way to the thread.
    pub next: Option<(Rank, TcpStream)>,
    /// Authenticated connections that the owner has not asked for yet, in the order of their coming.
    pub parked: Vec<Accepted>,
    pub stop: Stop,
    pub on_event: Option<OnEvent>,
    /// What keeps connections from being accepted, for long.
    pub starving: Option<NoDescriptor>,
    /// Where every rank listens; known once the ring has gathered it.
    pub addrs: Vec<std::net::SocketAddr>,
}

impl State {
    /// Whether `peer` is lost, and why: where it gave up for another rank's sake, that one is named, which was heard of first.
    pub fn why_lost(&self, peer: Rank) -> Option<BootstrapError> {
        let lost = self.ring.lost(peer)?;
        Some(
            self.ring.broken().filter(|_| matches!(lost, BootstrapError::PeerAborted { .. })).unwrap_or(lost),
        )
    }

    /// Why whoever wants to connect to this rank, `me`, is not accepted.
    pub fn starved(&self, me: Rank) -> Option<BootstrapError> {
        let what = "accept a connection of another rank";
        self.starving.map(|why| BootstrapError::NoDescriptor { rank: Some(me), what, why })
    }
}

impl Shared {
    pub fn new(
        me: Rank,
        nranks: u32,
        secret: Secret,
        config: BootstrapConfig,
    ) -> Result<Arc<Shared>, BootstrapError> {
        let wake = with_room(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
            .map_err(|error| BootstrapError::io("make an eventfd", &error.into()))?;
        let state = State {
            ring: Ring::new(me, nranks),
            next: None,
            parked: Vec::new(),
            stop: Stop::No,
            on_event: None,
            starving: None,
            addrs: Vec::new(),
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Ok(Arc::new(Shared { me, nranks, secret, config, state, changed, wake }))
    }

    /// The state. A panic elsewhere does not make it unusable: it is only ever changed in whole steps.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the thread look at the state. A counter that is full wakes it as well.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits until `look` gives something, looking again whenever the thread has changed the state; `None` when the
    /// time is up.
    pub fn wait_for<T>(
        &self,
        deadline: &Deadline,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = deadline.left()?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A connection to a neighbour and what is still to be written to it.
struct Link {
    stream: TcpStream,
    out: Vec<u8>,
    sent: usize,
}

pub(crate) struct Service {
    shared: Arc<Shared>,
    acceptor: Acceptor,
    links: [Option<Link>; 2],
    /// A new predecessor that came before the old one's end was seen.
    next_prev: Option<(Rank, TcpStream)>,
    heal: Heal,
    leave_until: Option<Instant>,
    buffer: Vec<u8>,
}

/// What poll(2) found, by whom it concerns.
struct Ready {
    links: [bool; 2],
    heal: bool,
    acceptor: Vec<PollFlags>,
}

impl Service {
    pub fn new(shared: Arc<Shared>, acceptor: Acceptor) -> Service {
        Service {
            shared,
            acceptor,
            links: [None, None],
            next_prev: None,
            heal: Heal::default(),
            leave_until: None,
            buffer: vec![0; READ_BYTES],
        }
    }

    /// Runs until told to stop.
    pub fn run(mut self) {
        let mut accepted = Vec::new();
        while self.settle() {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    return tracing::warn!(%error, "the bootstrap cannot wait for its sockets and gives up");
                }
            };
            let now = Instant::now();
            for side in Side::BOTH {
                if ready.links[side as usize] {
                    self.read(side);
                }
            }
            if ready.heal || self.heal.deadline().is_some_and(|at| now >= at) {
                self.mend(now);
            }
            if self.leave_until.is_some() || self.shared.lock().ring.is_thinned() {
                self.acceptor.expect_departures();
            }
            self.acceptor.drive(now, &ready.acceptor, &mut accepted);
            accepted.drain(..).for_each(|accepted| self.admit(accepted));
            let starving = self.acceptor.starved(now);
            let before = std::mem::replace(&mut self.shared.lock().starving, starving);
            if before != starving {
                self.shared.changed.notify_all();
            }
        }
    }

    /// Brings sockets in line with the state, and writes; whether to go on.
    fn settle(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        match state.stop {
            Stop::No => {}
            Stop::Die => return false,
            Stop::Leave => {
                if self.leave_until.is_none() {
                    self.leave_until = Some(Instant::now() + CLOSE_MAX);
                    state.ring.leave();
                }
            }
        }
        if let Some((peer, stream)) = state.next.take() {
            self.attach(&mut state, Side::Next, peer, stream);
        }
        // A new predecessor waits until the old one's last words are read. A rank that leaves does not need those, but
        // owes the new one its goodbye: closing without it would look like a death.
        if (self.links[Side::Prev as usize].is_none() || self.leave_until.is_some())
            && let Some((peer, stream)) = self.next_prev.take()
        {
            // So does the old one, if it is not the one that has ended: two may have come for the place of a third.
            self.fetch_output(&mut state, Side::Prev);
            self.write(Side::Prev);
            self.attach(&mut state, Side::Prev, peer, stream);
        }
        Side::BOTH.into_iter().for_each(|side| self.fetch_output(&mut state, side));
        let owes_news = state.ring.owes_its_predecessor_news();
        drop(state);
        for side in Side::BOTH {
            self.write(side);
        }
        self.deliver();
        !self.has_left(owes_news)
    }

    fn fetch_output(&mut self, state: &mut State, side: Side) {
        if let Some(link) = &mut self.links[side as usize] {
            match link.out.is_empty() {
                true => link.out = state.ring.take_output(side),
                false => link.out.append(&mut state.ring.take_output(side)),
            }
        }
    }

    /// Whether the goodbye has been written, and answered or waited for long enough.
    fn has_left(&self, owes_news: bool) -> bool {
        let answered = self.links.iter().all(Option::is_none) && !owes_news;
        self.leave_until.is_some_and(|until| answered || Instant::now() >= until)
    }

    fn attach(&mut self, state: &mut State, side: Side, peer: Rank, stream: TcpStream) {
        if let Err(error) = sock::watch_for_vanished_host(&stream, self.shared.config.peer_dead_after) {
            tracing::warn!(%peer, %error, "cannot set keep-alive on a ring connection; a vanished host may go unnoticed");
        }
        state.ring.attach(side, peer);
        self.links[side as usize] = Some(Link { stream, out: Vec::new(), sent: 0 });
        self.shared.changed.notify_all();
    }

    /// Tells the owner's callback what happened, without the lock.
    fn deliver(&self) {
        loop {
            let mut state = self.shared.lock();
            let Some(on_event) = state.on_event.take() else { return };
            let event = state.ring.next_event();
            drop(state);
            let had_one = event.is_some();
            if let Some(event) = event {
                // The thread also forwards the other ranks' news: it must survive a callback that does not.
                let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| on_event(event)));
                if outcome.is_err() {
                    tracing::error!("the callback for events of peers panicked");
                }
            }
            self.shared.lock().on_event.get_or_insert(on_event);
            if !had_one {
                return;
            }
        }
    }

    fn wait(&mut self) -> std::io::Result<Ready> {
        let mut fds = Vec::with_capacity(4 + self.acceptor.poll_len());
        fds.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        for link in self.links.iter().flatten() {
            let out = if link.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::new(&link.stream, PollFlags::IN | out));
        }
        self.heal.poll_fd(&mut fds);
        self.acceptor.poll_fds(&mut fds);
        let until = [self.acceptor.deadline(), self.heal.deadline(), self.leave_until];
        sock::poll(&mut fds, until.into_iter().flatten().min())?;
        let mut answers = fds.iter().map(PollFd::revents);
        let mut next = || answers.next().is_some_and(|flags| !flags.is_empty());
        let woken = next();
        let links = [0, 1].map(|side| self.links[side].is_some() && next());
        let heal = self.heal.is_connecting() && next();
        let ready = Ready { links, heal, acceptor: answers.collect() };
        if woken {
            let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
        }
        Ok(ready)
    }

    fn write(&mut self, side: Side) {
        let Some(link) = &mut self.links[side as usize] else { return };
        while link.sent < link.out.len() {
            match sock::write_some(&link.stream, &link.out[link.sent..]) {
                Ok(Some(sent)) if sent > 0 => link.sent += sent,
                Ok(None) => return,
                // What the neighbour said before its end is still to be read: the end is seen there.
                _ => break,
            }
        }
        link.out.clear();
        link.sent = 0;
        if self.leave_until.is_some() {
            let _ = link.stream.shutdown(std::net::Shutdown::Write);
        }
    }

    fn read(&mut self, side: Side) {
        let Some(link) = &self.links[side as usize] else { return };
        let got = sock::read_some(&link.stream, &mut self.buffer);
        let mut state = self.shared.lock();
        let before = state.ring.peer(side);
        match got {
            Ok(None) => return,
            Ok(Some(got)) if got > 0 => state.ring.receive(side, &self.buffer[..got]),
            _ => state.ring.ended(side),
        }
        let ended = state.ring.peer(side).is_none();
        drop(state);
        self.shared.changed.notify_all();
        if ended {
            self.links[side as usize] = None;
            if let (Side::Next, Some(peer)) = (side, before)
                && self.leave_until.is_none()
            {
                self.heal.begin(peer);
                self.mend(Instant::now());
            }
        }
    }

    /// Moves on the search for a new successor.
    fn mend(&mut self, now: Instant) {
        let shared = self.shared.clone();
        if let Some((peer, stream)) = self.heal.advance(now, &shared) {
            let mut state = shared.lock();
            self.attach(&mut state, Side::Next, peer, stream);
        }
    }

    /// An authenticated connection: a new predecessor is the service's own, everything else waits for the owner.
    fn admit(&mut self, accepted: Accepted) {
        let from = Rank(accepted.hello.from);
        if from.0 >= self.shared.nranks || accepted.hello.purpose == Purpose::Register {
            return self.acceptor.refuse(accepted.remote, &"it names no rank of this communicator");
        }
        let mut state = self.shared.lock();
        if accepted.hello.purpose == Purpose::Ring {
            // One that has left meanwhile must not take the place of one that stays.
            if !state.ring.is_gone(from) {
                self.next_prev = Some((from, accepted.stream));
            }
            return;
        }
        if state.parked.len() >= PARKED_MAX {
            drop(state);
            return self.acceptor.refuse(accepted.remote, &"too many connections wait to be accepted");
        }
        state.parked.push(accepted);
        drop(state);
        self.shared.changed.notify_all();
    }
}
