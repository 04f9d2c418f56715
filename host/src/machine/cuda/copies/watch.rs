//! A thread that looks after streams that wait for words: such a wait has no timeout of its own, and ends only when somebody writes.
//!
//! ```text
//! communicator usable    a wait for a peer that lasts the timeout:  the communicator fails, with that peer
//! communicator failed    all words of this rank = released, again and again: streams set words back and wait for the next
//! ```

use super::words::AWAITED;
use crate::launch::{Health, Notify};
use crate::machine::Verdict;
use crate::transport::p2p::SignalTable;
use oxccl_shared::abi::Rank;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is looked after.
pub(super) struct Watched {
    pub rank: Rank,
    pub nranks: u32,
    pub table: Arc<SignalTable>,
    pub health: Arc<Health>,
    pub notify: Arc<dyn Notify + Sync>,
    pub timeout: Duration,
}

/// Looks while no stream waits.
const IDLE: Duration = Duration::from_millis(100);
/// Looks while one does.
const WAITING: Duration = Duration::from_millis(2);
/// Releases of a communicator that has failed.
const FAILED: Duration = Duration::from_millis(1);

/// The thread, which ends when this is dropped.
pub(super) struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts it. A process that gets no thread goes on without: waits then last until the communicator is dropped.
    pub fn start(watched: Watched) -> Watch {
        let stop: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let seen = stop.clone();
        let rank = watched.rank;
        let started = std::thread::Builder::new().name("oxccl-copies".into()).spawn(move || {
            let mut looks = Looks::new(watched);
            let (stop, changed) = &*seen;
            let mut stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
            while !*stopped {
                drop(stopped);
                let pause = looks.look(Instant::now());
                stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
                if !*stopped {
                    let waited = changed.wait_timeout(stopped, pause);
                    stopped = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        });
        if let Err(error) = &started {
            tracing::warn!(%rank, %error, "no thread watches copies: their waits have no timeout");
        }
        Watch { stop, thread: started.ok() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        // It never panics, and if it did there is nothing to do about it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Looks {
    watched: Watched,
    /// For each rank: what was waited for, and since when.
    since: Vec<(u64, Instant)>,
}

impl Looks {
    fn new(watched: Watched) -> Looks {
        let since = vec![(0, Instant::now()); watched.nranks as usize];
        Looks { watched, since }
    }

    /// Looks once; returns when to look again.
    fn look(&mut self, now: Instant) -> Duration {
        let Watched { rank, table, health, notify, timeout, .. } = &self.watched;
        if health.is_stopped() {
            table.release();
            return FAILED;
        }
        let mut pause = IDLE;
        for (peer, since) in (0..).map(Rank).zip(&mut self.since) {
            // ACQUIRE pairs with the stream's write.
            let awaited = table.word(*rank, peer, AWAITED).map_or(0, |word| word.load_acquire());
            if awaited != since.0 {
                *since = (awaited, now);
            }
            if awaited == 0 {
                continue;
            }
            pause = WAITING;
            let waited = now.duration_since(since.1);
            if waited > *timeout {
                let verdict = Verdict { health, notify: &**notify, latest: health.latest() };
                verdict.overdue(peer, waited, None);
                return FAILED;
            }
        }
        pause
    }
}
