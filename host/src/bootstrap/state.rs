//! Layer: host / bootstrap.
//! Takes: the owner's requests and the thread's findings.
//! Gives: [`Shared`]: the state of one rank's bootstrap under one lock, for the owner, the thread and ring repair.
//! Never: touches a socket, except to wake the thread.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;
use rustix::event::{EventfdFlags, eventfd};

use super::acceptor::Accepted;
use super::cancel::Cancel;
use super::channel::Channel;
use super::config::BootstrapConfig;
use super::credentials::Credentials;
use super::error::BootstrapError;
use super::incidents::Incidents;
use super::links::Links;
use super::rank_list::RankList;
use super::ring::{PeerEvent, Ring, Side};
use super::secret::Secret;
use super::silence::Neighbour;
use super::sock::Deadline;
use crate::os::{NoDescriptor, with_room};

/// How long a rank that has aborted still waits for others, which may need its memory until they hear of it.
pub(crate) const ABORTED_WAITS: Duration = Duration::from_secs(2);

/// How long ranks that a meeting failed on wait in the next one for ranks that have finished that one: these find their communicator broken
/// by the same death, and may come.
const MAY_COME_BACK: Duration = Duration::from_millis(500);

/// The share of the timeout after which a wait is long.
pub(crate) const LONG_SHARE: u32 = 4;
/// How long a rank that is about to fail waits until its last words are written.
const FLUSH_MAX: Duration = Duration::from_millis(100);

/// Called for every [`PeerEvent`], on the service's thread.
pub type OnEvent = Box<dyn Fn(PeerEvent) + Send>;

/// Called on the service's thread after everything that happens, with this rank's neighbours; returns when to be called again, if nothing
/// does.
pub type OnTick = Box<dyn FnMut(Instant, &[Neighbour]) -> Option<Instant> + Send>;

/// Where a rank is, for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The name of its host.
    pub host: String,
    /// The number of its process there.
    pub process: u32,
}

/// The owner's request to the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    No,
    /// Say goodbye, then end.
    Leave,
    /// End like a killed process.
    Die,
}

/// Ranks that make a communicator without the others, which may be gone.
pub(crate) struct Meeting {
    pub members: Vec<Rank>,
    /// Distinguishes it from others.
    pub tag: u64,
    /// Ends the join.
    pub cancel: Cancel,
    /// When to give up because of a member that has gone on without this rank.
    pub ends_at: Option<Instant>,
    /// Whether a member may leave this communicator as soon as it has the new one: all of this one's ranks make it, and all had come before.
    pub may_leave: bool,
}

/// What a thread of the owner waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaits {
    /// The neighbours' connections.
    Neighbours,
    /// The blocks of an all-gather.
    Blocks,
    /// A rank that is to connect.
    Peer(Rank),
}

/// A wait of a thread of the owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    what: Awaits,
    /// From this moment on the wait is long, and the other ranks are told of it.
    long_at: Instant,
}

/// The wait lasts until this is dropped.
pub(crate) struct WaitGuard<'a> {
    shared: &'a Shared,
    wait: Waiting,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let is_this = |wait: &Waiting| (wait.what, wait.long_at) == (self.wait.what, self.wait.long_at);
        if let Some(at) = state.waiting.iter().position(is_this) {
            state.waiting.swap_remove(at);
        }
        let was_said = state.said_waiting.is_some();
        drop(state);
        if was_said {
            self.shared.wake();
        }
    }
}

/// State shared by owner and thread.
pub(crate) struct Shared {
    pub me: Rank,
    pub nranks: u32,
    pub secret: Secret,
    /// How it shows which rank it is.
    pub credentials: Credentials,
    pub config: BootstrapConfig,
    /// What happens rarely.
    pub incidents: Arc<Incidents>,
    /// The data streams on which it sends.
    pub links: Arc<Links>,
    /// Ends the waits of joining.
    pub cancel: Cancel,
    state: Mutex<State>,
    changed: Condvar,
    wake: OwnedFd,
}

pub(crate) struct State {
    pub ring: Ring,
    /// Connections to the successor and the parent, to be taken by the thread.
    pub dialed: Vec<(Side, Rank, Channel)>,
    /// Authenticated connections in the order of arrival, until the owner accepts them.
    pub parked: Vec<Accepted>,
    pub stop: Stop,
    pub on_event: Option<OnEvent>,
    pub on_tick: Option<OnTick>,
    /// The limit that has kept connections from being accepted for a while.
    pub starving: Option<NoDescriptor>,
    /// When this rank aborted.
    pub aborted_at: Option<Instant>,
    /// The meeting of some ranks that is under way.
    pub meeting: Option<Meeting>,
    /// The tags of those that failed on this rank.
    pub failed_meetings: Vec<u64>,
    /// The waits of the owner's threads, and what the other ranks were told of the long ones.
    pub waiting: Vec<Waiting>,
    pub said_waiting: Option<RankList>,
    /// The thread, once it runs.
    pub thread: Option<ThreadId>,
    /// How often somebody wanted all output written, and how many of these wishes are fulfilled.
    pub flushes_asked: u64,
    pub flushes_done: u64,
    /// Every rank's listener address; known once the ring has gathered them.
    pub addrs: Vec<std::net::SocketAddr>,
    /// Where every rank is, and the communicator's number; known from then on.
    pub places: Vec<Place>,
    pub number: u64,
}

impl State {
    /// Why `peer` is lost, if it is. If it gave up, ended or left after another rank's loss, the error names that rank.
    pub fn why_lost(&self, peer: Rank) -> Option<BootstrapError> {
        let lost = self.ring.lost(peer)?;
        Some(self.ring.broken().unwrap_or(lost))
    }

    /// Why one of these ranks cannot take part in anything any more: its process or host is gone, or it has left. One that has only
    /// aborted can.
    pub fn why_gone(&self, members: &[Rank]) -> Option<BootstrapError> {
        let gone = members.iter().copied().find(|rank| self.ring.is_gone(*rank))?;
        Some(match self.ring.lost(gone) {
            Some(left @ BootstrapError::PeerLeft { .. }) => left,
            _ => BootstrapError::PeerLost { rank: gone },
        })
    }

    /// One of these ranks whose process or host is gone.
    pub fn who_died(&self, members: &[Rank]) -> Option<Rank> {
        let has_left = |rank: Rank| matches!(self.ring.lost(rank), Some(BootstrapError::PeerLeft { .. }));
        members.iter().copied().find(|rank| self.ring.is_gone(*rank) && !has_left(*rank))
    }

    /// One of these ranks that has finished a meeting that failed here: it has a communicator with this rank, and does not know that this
    /// rank has none.
    pub fn who_went_on(&self, members: &[Rank]) -> Option<Rank> {
        let went_on =
            |rank: &Rank| self.failed_meetings.iter().any(|tag| self.ring.has_finished(*rank, *tag));
        members.iter().copied().find(went_on)
    }

    /// Ends the meeting of survivors of which one is gone, or has gone on without this rank and does not come back, or to which one is known
    /// not to come. Whether it ended now.
    pub fn end_hopeless_meeting(&mut self, now: Instant) -> bool {
        let Some(meeting) = self.meeting.as_ref().filter(|meeting| !meeting.cancel.is_called()) else {
            return false;
        };
        let has_lost = match meeting.may_leave {
            true => self.who_died(&meeting.members).is_some(),
            false => self.why_gone(&meeting.members).is_some(),
        };
        let is_alone = self.who_went_on(&meeting.members).is_some();
        let Some(meeting) = &mut self.meeting else { return false };
        if is_alone {
            meeting.ends_at.get_or_insert(now + MAY_COME_BACK);
        }
        let is_missed = self.ring.missed(meeting.tag).is_some() || self.ring.withdrew(meeting.tag).is_some();
        let is_hopeless = has_lost || is_missed || meeting.ends_at.is_some_and(|at| now >= at);
        if is_hopeless {
            meeting.cancel.end_in_vain();
        }
        is_hopeless
    }

    /// Tells the others of waits that last for long, or are over. Returns when to call it again.
    pub fn say_long_waits(&mut self, now: Instant) -> Option<Instant> {
        let (long, short): (Vec<Waiting>, Vec<Waiting>) =
            self.waiting.iter().partition(|wait| now >= wait.long_at);
        let awaited = long.iter().flat_map(|wait| match wait.what {
            Awaits::Neighbours => self.ring.awaited().named().to_vec(),
            // The blocks themselves tell who is missing.
            Awaits::Blocks => Vec::new(),
            Awaits::Peer(peer) => vec![peer],
        });
        let awaited: BTreeSet<Rank> = awaited.collect();
        let said = (!long.is_empty()).then(|| awaited.into_iter().collect());
        if said != self.said_waiting {
            self.said_waiting = said;
            self.ring.say_waiting(said);
        }
        short.iter().map(|wait| wait.long_at).min()
    }

    /// When the meeting ends unless those that have gone on come back.
    pub fn meeting_ends_at(&self) -> Option<Instant> {
        self.meeting.as_ref().filter(|meeting| !meeting.cancel.is_called())?.ends_at
    }

    /// Why this rank, `me`, cannot accept a connection.
    pub fn starved(&self, me: Rank) -> Option<BootstrapError> {
        let what = "accept a connection of another rank";
        self.starving.map(|why| BootstrapError::NoDescriptor { rank: Some(me), what, why })
    }
}

impl Shared {
    pub fn new(
        (me, nranks): (Rank, u32),
        (secret, credentials): (Secret, Credentials),
        config: BootstrapConfig,
        cancel: &Cancel,
    ) -> Result<Arc<Shared>, BootstrapError> {
        let wake = with_room(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
            .map_err(|error| BootstrapError::io("make an eventfd", &error.into()))?;
        let state = State {
            ring: Ring::new(me, nranks),
            dialed: Vec::new(),
            parked: Vec::new(),
            stop: Stop::No,
            on_event: None,
            on_tick: None,
            starving: None,
            aborted_at: None,
            meeting: None,
            failed_meetings: Vec::new(),
            waiting: Vec::new(),
            said_waiting: None,
            thread: None,
            flushes_asked: 0,
            flushes_done: 0,
            addrs: Vec::new(),
            places: Vec::new(),
            number: 0,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let cancel = cancel.clone();
        let (incidents, links) = (Arc::default(), Arc::default());
        Ok(Arc::new(Shared {
            me,
            nranks,
            secret,
            credentials,
            config,
            incidents,
            links,
            cancel,
            state,
            changed,
            wake,
        }))
    }

    /// By which this rank connects to others.
    pub fn key(&self) -> (Secret, &Credentials) {
        (self.secret, &self.credentials)
    }

    /// Locks the state. A panic elsewhere does not make it unusable: every change is complete.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the thread read the state. A full counter wakes it as well.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The descriptor that [`Self::wake`] makes readable.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Reads the counter that [`Self::wake`] wrote.
    pub fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    /// Notifies callers of [`Self::wait_for`] of a change.
    pub fn announce_change(&self) {
        self.changed.notify_all();
    }

    /// A thread of the owner's begins to wait. If that lasts, the other ranks learn for whom, and do not take this rank for the one at
    /// fault.
    pub fn begin_wait(&self, what: Awaits) -> WaitGuard<'_> {
        let wait = Waiting { what, long_at: Deadline::after(self.config.timeout / LONG_SHARE).next_look() };
        self.lock().waiting.push(wait);
        self.wake();
        WaitGuard { shared: self, wait }
    }

    /// Waits until the thread has written what there was to write, so that other ranks hear of it even if this process ends now. Not for
    /// long: a neighbour may not read.
    pub fn flush(&self) {
        let mut state = self.lock();
        // The thread writes when its callback returns.
        if state.thread == Some(std::thread::current().id()) {
            return;
        }
        state.flushes_asked += 1;
        let mine = state.flushes_asked;
        drop(state);
        self.wake();
        let is_done = |state: &mut State| (state.flushes_done >= mine).then_some(());
        // In vain: the bytes wait in the kernel, or for a neighbour.
        let _ = self.wait_for(&Deadline::after(FLUSH_MAX).outlasting_abort(), is_done);
    }

    /// Waits until `look` returns something; calls it again after every change by the thread. `None` on timeout, when joining is
    /// cancelled, and soon after this rank has aborted.
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
            let mut left = deadline.left()?;
            if let Some(at) = state.aborted_at.filter(|_| !deadline.outlasts_abort()) {
                left = left.min(ABORTED_WAITS.checked_sub(at.elapsed())?);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
