//! Layer: host / bootstrap.
//! Takes: the root's acceptor, the number of ranks that are to come.
//! Gives: [`Helpers`]: threads that take part in the handshakes of many ranks, each of which costs the root 0.1 ms of a processor.
//! Never: decides anything: what has proved itself goes to the root's own thread. Nor outlives the root by more than [`LOOK_EVERY`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, eventfd};

use super::acceptor::{Accepted, Acceptor, Foreign};
use super::error::Strangers;
use super::sock;

/// Ranks that keep one thread busy for some 30 ms.
const RANKS_PER_THREAD: u32 = 256;
const HELPERS_MAX: usize = 7;
/// How often a helper looks whether the root is still there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What helpers have for the root's thread.
struct Found {
    accepted: Mutex<Vec<Accepted>>,
    other_version: Mutex<Option<Foreign>>,
    strangers: Mutex<Option<Strangers>>,
    wake: OwnedFd,
}

/// Threads that help the root; they end when this is dropped.
pub(super) struct Helpers {
    found: Arc<Found>,
}

impl Helpers {
    /// As many as that many ranks and this host's processors are worth. `None`: the root does it alone, also where the system has no thread or
    /// descriptor for them.
    pub fn start(acceptor: &Acceptor, nranks: u32) -> Option<Helpers> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = ((nranks / RANKS_PER_THREAD) as usize).min(processors - 1).min(HELPERS_MAX);
        if count == 0 {
            return None;
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let found = Arc::new(Found {
            accepted: Mutex::default(),
            other_version: Mutex::default(),
            strangers: Mutex::default(),
            wake,
        });
        for _ in 0..count {
            let (acceptor, found) = (acceptor.helper().ok()?, Arc::downgrade(&found));
            let thread = std::thread::Builder::new().name("oxccl-root-help".into());
            thread.spawn(move || help(acceptor, &found)).ok()?;
        }
        Some(Helpers { found })
    }

    /// Readable when [`Self::take`] has something.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.found.wake.as_fd()
    }

    /// Takes a rank of the job that speaks another version.
    pub fn other_version(&self) -> Option<Foreign> {
        self.found.other_version.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes those that hold another secret.
    pub fn strangers(&self) -> Option<Strangers> {
        self.found.strangers.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes the connections that have passed the handshake.
    pub fn take(&self) -> Vec<Accepted> {
        let _ = rustix::io::read(&self.found.wake, &mut [0u8; 8]);
        std::mem::take(&mut *self.found.accepted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn help(mut acceptor: Acceptor, found: &Weak<Found>) {
    let mut accepted = Vec::new();
    loop {
        let mut fds = Vec::with_capacity(acceptor.poll_len());
        acceptor.poll_fds(&mut fds);
        let until = acceptor.deadline().into_iter().chain([Instant::now() + LOOK_EVERY]).min();
        if let Err(error) = sock::poll(&mut fds, until) {
            return tracing::warn!(%error, "a thread of the root cannot wait for its sockets and gives up");
        }
        let ready: Vec<_> = fds.iter().map(PollFd::revents).collect();
        let Some(found) = found.upgrade() else { return };
        acceptor.drive(Instant::now(), &ready, &mut accepted);
        let foreign = acceptor.take_other_version();
        if foreign.is_some() {
            *found.other_version.lock().unwrap_or_else(PoisonError::into_inner) = foreign;
        }
        if let Some(later) = acceptor.take_strangers() {
            later.add_to(&mut found.strangers.lock().unwrap_or_else(PoisonError::into_inner));
        }
        if foreign.is_some() || !accepted.is_empty() {
            found.accepted.lock().unwrap_or_else(PoisonError::into_inner).append(&mut accepted);
            let _ = rustix::io::write(&found.wake, &1u64.to_ne_bytes());
        }
    }
}
