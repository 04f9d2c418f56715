//! Layer: host / bootstrap.
//! Takes: a rank's listener and, once they are there, its ring connections.
//! Gives: the one thread of a communicator that does all waiting for its bootstrap sockets.
//! Never: spins (it sleeps in poll(2) until something happens), calls the owner back with the lock held, or outlives
//! the owner's close by more than [`CLOSE_MAX`], or [`ABORTED_CLOSE_MAX`].

use std::io::ErrorKind;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;
use rustix::event::{PollFd, PollFlags};

use super::acceptor::{Accepted, Acceptor};
use super::channel::Channel;
use super::handshake::Purpose;
use super::ring::Side;
use super::ring_repair::RingRepair;
use super::silence::{Neighbour, Silences};
use super::sock;
use super::state::{Shared, State, Stop};

/// Time limit for the goodbye: to write it, and for the neighbours to answer by closing.
pub(crate) const CLOSE_MAX: Duration = Duration::from_millis(500);
/// The same of a rank whose program aborted it while it joined: those that come to connect hear it from nobody else, and would take the refusal
/// for its death.
const ABORTED_CLOSE_MAX: Duration = Duration::from_secs(2);
/// Most authenticated connections that wait for the owner to accept them.
const PARKED_MAX: usize = 4096;
const READ_BYTES: usize = 64 << 10;

/// A connection to a neighbour and its unwritten output, sealed.
struct Link {
    channel: Channel,
    out: Vec<u8>,
    sent: usize,
}

pub(crate) struct Service {
    shared: Arc<Shared>,
    acceptor: Acceptor,
    links: [Option<Link>; Side::COUNT],
    /// A new predecessor that connected before the old one's end was seen.
    next_prev: Option<(Rank, Channel)>,
    repair: RingRepair,
    leave_until: Option<Instant>,
    /// When the owner wants to be called, and when to look at the meeting of survivors.
    tick_at: Option<Instant>,
    meeting_at: Option<Instant>,
    /// When a wait of the owner's is long.
    long_wait_at: Option<Instant>,
    silences: Silences,
    buffer: Vec<u8>,
}

/// Results of poll(2), by socket.
struct Ready {
    links: [bool; Side::COUNT],
    repair: bool,
    acceptor: Vec<PollFlags>,
}

impl Service {
    pub fn new(shared: Arc<Shared>, acceptor: Acceptor) -> Service {
        Service {
            shared,
            acceptor,
            links: [const { None }; Side::COUNT],
            next_prev: None,
            repair: RingRepair::default(),
            leave_until: None,
            tick_at: None,
            meeting_at: None,
            long_wait_at: None,
            silences: Silences::default(),
            buffer: vec![0; READ_BYTES],
        }
    }

    /// Runs until stopped.
    pub fn run(mut self) {
        let mut accepted = Vec::new();
        self.shared.lock().thread = Some(std::thread::current().id());
        while self.settle() {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    return tracing::warn!(%error, "the bootstrap cannot wait for its sockets and gives up");
                }
            };
            let now = Instant::now();
            for side in Side::ALL {
                if ready.links[side as usize] {
                    self.read(side);
                }
            }
            if ready.repair || self.repair.deadline().is_some_and(|at| now >= at) {
                self.repair_ring(now);
            }
            let refusals = self.acceptor.refusals();
            if self.leave_until.is_some() || self.shared.lock().ring.is_thinned() {
                self.acceptor.expect_departures();
            }
            self.acceptor.drive(now, &ready.acceptor, &mut accepted);
            accepted.drain(..).for_each(|accepted| self.admit(accepted));
            if self.acceptor.refusals() != refusals {
                self.shared.incidents.refused(self.acceptor.refusals());
            }
            let starving = self.acceptor.starved(now);
            let before = std::mem::replace(&mut self.shared.lock().starving, starving);
            if before != starving {
                self.shared.announce_change();
            }
        }
    }

    /// Updates the sockets to the state, and writes; returns whether to continue.
    fn settle(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        match state.stop {
            Stop::No => {}
            Stop::Die => return false,
            Stop::Leave => {
                if self.leave_until.is_none() {
                    let is_awaited =
                        state.ring.is_cancelled() && shared.cancel.is_abort() && state.ring.owes_an_event();
                    let within = if is_awaited { ABORTED_CLOSE_MAX } else { CLOSE_MAX };
                    self.leave_until = Some(Instant::now() + within);
                    state.ring.leave();
                }
            }
        }
        for (side, peer, channel) in std::mem::take(&mut state.dialed) {
            self.attach(&mut state, side, peer, channel);
        }
        // A new predecessor waits until the old one's last bytes are read. A leaving rank does not need those, but
        // owes the new predecessor its goodbye: closing without one would look like a death.
        if (self.links[Side::Prev as usize].is_none() || self.leave_until.is_some())
            && let Some((peer, channel)) = self.next_prev.take()
        {
            // The old predecessor waits too, unless it is the one that ended: two ranks may have connected to replace
            // a third.
            self.fetch_output(&mut state, Side::Prev);
            self.write(Side::Prev);
            self.attach(&mut state, Side::Prev, peer, channel);
        }
        self.long_wait_at = state.say_long_waits(Instant::now());
        Side::ALL.into_iter().for_each(|side| self.fetch_output(&mut state, side));
        let owes_event = state.ring.owes_an_event();
        if state.end_hopeless_meeting(Instant::now()) {
            shared.announce_change();
        }
        self.meeting_at = state.meeting_ends_at();
        let flushes = state.flushes_asked;
        let is_asked = flushes != state.flushes_done;
        drop(state);
        for side in Side::ALL {
            self.write(side);
        }
        if is_asked && self.links.iter().flatten().all(|link| link.out.is_empty()) {
            shared.lock().flushes_done = flushes;
            shared.announce_change();
        }
        self.deliver();
        self.tick();
        !self.has_left(owes_event)
    }

    fn fetch_output(&mut self, state: &mut State, side: Side) {
        if let Some(link) = &mut self.links[side as usize] {
            link.channel.seal(&state.ring.take_output(side), &mut link.out);
        }
    }

    /// Whether the goodbye is written, and answered or timed out.
    fn has_left(&self, owes_event: bool) -> bool {
        let answered = self.links.iter().all(Option::is_none) && !owes_event;
        self.leave_until.is_some_and(|until| answered || Instant::now() >= until)
    }

    fn attach(&mut self, state: &mut State, side: Side, peer: Rank, channel: Channel) {
        if let Err(error) = sock::watch_for_vanished_host(&channel.stream, self.shared.config.peer_dead_after)
        {
            tracing::warn!(%peer, %error, "cannot set keep-alive on a connection; a vanished host may go unnoticed");
        }
        state.ring.attach(side, peer);
        self.links[side as usize] = Some(Link { channel, out: Vec::new(), sent: 0 });
        self.shared.announce_change();
    }

    /// Calls the owner's callback, without the lock.
    fn deliver(&self) {
        loop {
            let mut state = self.shared.lock();
            let Some(on_event) = state.on_event.take() else { return };
            let event = state.ring.next_event();
            drop(state);
            let had_one = event.is_some();
            if let Some(event) = event {
                // The thread also forwards the other ranks' events, so it must survive a panic of the callback.
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

    /// Calls the owner's other callback, without the lock.
    fn tick(&mut self) {
        let mut state = self.shared.lock();
        let Some(mut on_tick) = state.on_tick.take() else { return };
        let ranks = Side::RING.map(|side| state.ring.peer(side));
        drop(state);
        let now = Instant::now();
        let streams = self.links.each_ref().map(|link| link.as_ref().map(|link| &link.channel.stream));
        let [prev, next, ..] = streams;
        self.silences.look(now, [ranks[0].zip(prev), ranks[1].zip(next)]);
        let neighbours: heapless::Vec<Neighbour, 2> = self.silences.neighbours().collect();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| on_tick(now, &neighbours)));
        match outcome {
            Ok(next) => {
                self.tick_at = next;
                self.shared.lock().on_tick.get_or_insert(on_tick);
            }
            Err(_) => tracing::error!("the callback for the time panicked and is not called any more"),
        }
    }

    fn wait(&mut self) -> std::io::Result<Ready> {
        let mut fds = Vec::with_capacity(4 + self.acceptor.poll_len());
        fds.push(PollFd::from_borrowed_fd(self.shared.wake_fd(), PollFlags::IN));
        for link in self.links.iter().flatten() {
            let out = if link.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::new(&link.channel.stream, PollFlags::IN | out));
        }
        self.repair.poll_fd(&mut fds);
        self.acceptor.poll_fds(&mut fds);
        let owners = [self.leave_until, self.tick_at, self.meeting_at, self.long_wait_at];
        let until = owners.into_iter().chain([self.acceptor.deadline(), self.repair.deadline()]);
        sock::poll(&mut fds, until.flatten().min())?;
        let mut answers = fds.iter().map(PollFd::revents);
        let mut next = || answers.next().is_some_and(|flags| !flags.is_empty());
        let woken = next();
        let links = self.links.each_ref().map(|link| link.is_some() && next());
        let repair = self.repair.is_connecting() && next();
        let ready = Ready { links, repair, acceptor: answers.collect() };
        if woken {
            self.shared.clear_wake();
        }
        Ok(ready)
    }

    fn write(&mut self, side: Side) {
        let Some(link) = &mut self.links[side as usize] else { return };
        while link.sent < link.out.len() {
            match sock::write_some(&link.channel.stream, &link.out[link.sent..]) {
                Ok(Some(sent)) if sent > 0 => link.sent += sent,
                Ok(None) => return,
                // The neighbour's last bytes are unread: the read finds the end.
                _ => break,
            }
        }
        link.out.clear();
        link.sent = 0;
        if self.leave_until.is_some() {
            let _ = link.channel.stream.shutdown(std::net::Shutdown::Write);
        }
    }

    fn read(&mut self, side: Side) {
        let Some(link) = &mut self.links[side as usize] else { return };
        let got = link.channel.read(&mut self.buffer);
        let mut state = self.shared.lock();
        let before = state.ring.peer(side);
        match got {
            Ok(Some(opened)) => state.ring.receive(side, &opened),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == ErrorKind::InvalidData => state.ring.altered(side),
            Ok(None) | Err(_) => state.ring.ended(side),
        }
        let ended = state.ring.peer(side).is_none();
        state.end_hopeless_meeting(Instant::now());
        drop(state);
        self.shared.announce_change();
        if ended {
            self.links[side as usize] = None;
            if let (Side::Next, Some(peer)) = (side, before)
                && self.leave_until.is_none()
            {
                self.repair.begin(peer);
                self.repair_ring(Instant::now());
            }
        }
    }

    /// Continues the search for a new successor.
    fn repair_ring(&mut self, now: Instant) {
        let shared = self.shared.clone();
        if let Some((peer, channel)) = self.repair.advance(now, &shared) {
            shared.incidents.reconnected(peer);
            let mut state = shared.lock();
            state.ring.suspect(self.repair.take_refused());
            self.attach(&mut state, Side::Next, peer, channel);
        } else if self.repair.has_ended() {
            let mut state = shared.lock();
            let refused = self.repair.take_refused();
            if state.addrs.is_empty() {
                state.ring.lose_while_joining(refused);
            } else {
                state.ring.remain_alone(refused);
            }
            state.end_hopeless_meeting(now);
            drop(state);
            shared.announce_change();
        }
    }

    /// Handles an authenticated connection: the service keeps a new predecessor; all others wait for the owner.
    fn admit(&mut self, accepted: Accepted) {
        let from = accepted.hello.from;
        if from.0 >= self.shared.nranks || accepted.hello.purpose == Purpose::Register {
            return self.acceptor.refuse(accepted.remote, &"it names no rank of this communicator");
        }
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if accepted.hello.purpose == Purpose::Ring {
            // A predecessor that has left meanwhile must not replace one that remains.
            if !state.ring.is_gone(from) {
                self.next_prev = Some((from, accepted.channel));
            }
            return;
        }
        if accepted.hello.purpose == Purpose::Tree {
            match state.ring.side_of_child(from) {
                Some(side) => self.attach(&mut state, side, from, accepted.channel),
                None => {
                    drop(state);
                    self.acceptor.refuse(accepted.remote, &"it is no child of this rank, or came before");
                }
            }
            return;
        }
        if state.parked.len() >= PARKED_MAX {
            drop(state);
            return self.acceptor.refuse(accepted.remote, &"too many connections wait to be accepted");
        }
        state.parked.push(accepted);
        drop(state);
        self.shared.announce_change();
    }
}
