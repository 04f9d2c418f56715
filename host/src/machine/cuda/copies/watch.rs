//! A thread that looks after streams that wait for words: such a wait has no timeout of its own, and ends only when somebody writes.
//!
//! ```text
//! communicator usable    a wait for a peer that lasts the timeout:  the communicator fails, with that peer
//! communicator failed    all words of this rank = released, again and again: streams set words back and wait for the next
//! ```

use super::words::{AWAITED, Awaited, pair_of, shift, slot};
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
    /// What was waited for, whose word was not there, and since when.
    since: Option<(u64, Rank, Instant)>,
}

impl Looks {
    fn new(watched: Watched) -> Looks {
        Looks { watched, since: None }
    }

    /// Looks once; returns when to look again.
    fn look(&mut self, now: Instant) -> Duration {
        let Watched { table, health, notify, timeout, .. } = &self.watched;
        if health.is_stopped() {
            table.release();
            return FAILED;
        }
        let Some((word, peer)) = self.missing() else {
            self.since = None;
            return IDLE;
        };
        let before = self.since.filter(|(then, who, _)| (*then, *who) == (word, peer));
        let (.., since) = *self.since.insert(before.unwrap_or((word, peer, now)));
        let waited = now.duration_since(since);
        if waited <= *timeout {
            return WAITING;
        }
        let verdict = Verdict { health, notify: &**notify, latest: health.latest() };
        verdict.overdue(peer, *timeout, None);
        FAILED
    }

    /// What the stream waits for, and the first rank that has not said it.
    fn missing(&self) -> Option<(u64, Rank)> {
        let Watched { rank, nranks, table, .. } = &self.watched;
        // ACQUIRE pairs with the stream's write.
        let word = table.word(*rank, *rank, AWAITED)?.load_acquire();
        let awaited = Awaited::from_word(word)?;
        let has_said = |peer: Rank| {
            // ACQUIRE pairs with the peer's write.
            let said =
                table.word(*rank, pair_of(peer), slot(awaited.said)).map_or(0, |word| word.load_acquire());
            (said >> shift(peer)) as u32 >= awaited.pieces
        };
        let mut peers = (1..*nranks).map(|ahead| Rank((rank.0 + ahead) % nranks));
        let peer = peers.find(|peer| awaited.from.is_none_or(|from| from == *peer) && !has_said(*peer))?;
        Some((word, peer))
    }
}
