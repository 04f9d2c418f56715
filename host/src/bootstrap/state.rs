//! Layer: host / bootstrap.
//! Takes: what the owner of a bootstrap wants, and what its thread finds.
//! Gives: [`Shared`]: the state of one rank's bootstrap under one lock, for the owner, the thread and ring repair.
//! Never: touches a socket, but to wake the thread.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use oxccl_shared::abi::Rank;
use rustix::event::{EventfdFlags, eventfd};

use super::acceptor::Accepted;
use super::config::BootstrapConfig;
use super::error::BootstrapError;
use super::ring::{PeerEvent, Ring};
use super::secret::Secret;
use super::sock::Deadline;
use crate::os::{NoDescriptor, with_room};

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

    /// What [`Self::wake`] makes readable.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Reads what [`Self::wake`] wrote.
    pub fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    /// Says that the state has changed to whoever is in [`Self::wait_for`].
    pub fn announce_change(&self) {
        self.changed.notify_all();
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
