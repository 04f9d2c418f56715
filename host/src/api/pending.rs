//! What is being built, split or ended on a thread of its own.

use super::error::Error;
use super::handle::{CommHandle, CommState, aborted};
use crate::bootstrap::BootstrapError;
use crate::launch::in_flight;
use oxccl_shared::abi::Rank;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread may take to see an abort, and to tell those that still come to connect (up to 2 s). Afterwards it is left alone, and ends
/// by its own timeouts.
const ABORT_TAKES: Duration = Duration::from_secs(3);
/// How often a wait looks whether it was aborted.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The same while operations are in flight on the thread that waits.
const ADVANCE_EVERY: Duration = Duration::from_micros(100);

/// A communicator in progress: what a build, a split or a finalize that does not block gives.
///
/// The work is done by a thread of its own, whether [`Self::poll`] is called or not.
///
/// # Dropping it
/// aborts what is in progress, as [`Self::abort`] does, and waits for the thread, at most 3 s. The other ranks get an error that says that this
/// rank aborted or left ([`BootstrapError::PeerAborted`], or [`Fault::PeerAborted`](crate::Fault::PeerAborted) where they were done before;
/// `PeerLeft` where they ask when it has gone), within moments if they have called it too, and none is told that this rank died. A build that is dropped before the ranks' root is found is the exception: the
/// others miss it ([`BootstrapError::MissingRanks`]).
///
/// A communicator that another one is made of (by a split, a shrink or a grow) goes on: its operations do not notice. A split or a grow that is
/// dropped keeps its place: this rank still meets the others for it, on that thread, and nobody waits longer than otherwise. A finalize that is
/// dropped aborts the communicator itself.
#[must_use = "dropping it aborts the communicator"]
pub struct Pending<T> {
    handle: CommHandle,
    slot: Arc<Slot<T>>,
    thread: Option<JoinHandle<()>>,
    /// The process of the thread: a forked child has only the memory.
    process: u32,
}

struct Slot<T> {
    outcome: Mutex<Outcome<T>>,
    changed: Condvar,
}

enum Outcome<T> {
    InProgress,
    Known(Result<T, Error>),
    Taken,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, Outcome<T>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Becomes the outcome if the work panics.
struct Unfinished<'a, T>(&'a Slot<T>);

impl<T> Drop for Unfinished<'_, T> {
    fn drop(&mut self) {
        self.0.changed.notify_all();
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Does `work` on a thread of its own.
    ///
    /// # Errors
    /// [`BootstrapError::Io`]: there is no thread for it.
    pub(super) fn start(
        handle: CommHandle,
        work: impl FnOnce(&CommHandle) -> Result<T, Error> + Send + 'static,
    ) -> Result<Pending<T>, Error> {
        let slot = Arc::new(Slot { outcome: Mutex::new(Outcome::InProgress), changed: Condvar::new() });
        let (its_handle, its_slot) = (handle.clone(), slot.clone());
        let body = move || {
            let _unfinished = Unfinished(&its_slot);
            let result = work(&its_handle);
            let mut outcome = its_slot.lock();
            if matches!(*outcome, Outcome::InProgress) {
                *outcome = Outcome::Known(result);
            }
        };
        let name = format!("oxccl-init-{}", handle.rank());
        let thread = std::thread::Builder::new().name(name).spawn(body);
        let thread = thread.map_err(|error| BootstrapError::io("start a thread that connects", &error))?;
        Ok(Pending { handle, slot, thread: Some(thread), process: std::process::id() })
    }
}

impl<T> Pending<T> {
    /// The communicator's handle, which stays of use once it is built.
    pub fn handle(&self) -> CommHandle {
        self.handle.clone()
    }

    /// As [`CommHandle::state`].
    pub fn state(&self) -> CommState {
        self.handle.state()
    }

    /// As [`CommHandle::abort`].
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// The outcome, once it is known. Does not wait.
    ///
    /// # Panics
    /// If the outcome has been given before, or if the work panicked.
    pub fn poll(&mut self) -> Poll<Result<T, Error>> {
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let mut outcome = self.slot.lock();
        match std::mem::replace(&mut *outcome, Outcome::Taken) {
            Outcome::Known(result) => {
                drop(outcome);
                self.join();
                Poll::Ready(result)
            }
            Outcome::InProgress if has_ended => panic!("the thread that connects panicked"),
            Outcome::InProgress => {
                *outcome = Outcome::InProgress;
                Poll::Pending
            }
            Outcome::Taken => panic!("the outcome was taken before"),
        }
    }

    /// Waits for the outcome, at most for `time`.
    ///
    /// # Panics
    /// As [`Self::poll`].
    pub fn wait_for(&mut self, time: Duration) -> Poll<Result<T, Error>> {
        let (started, mut aborted_at) = (Instant::now(), None);
        loop {
            if let Poll::Ready(result) = self.poll() {
                return Poll::Ready(result);
            }
            if self.handle.is_aborted_early()
                && aborted_at.get_or_insert_with(Instant::now).elapsed() > ABORT_TAKES
            {
                return Poll::Ready(self.leave_alone());
            }
            let Some(left) = time.checked_sub(started.elapsed()) else { return Poll::Pending };
            in_flight::advance_all();
            let look_every = if in_flight::any() { ADVANCE_EVERY } else { LOOK_EVERY };
            let outcome = self.slot.lock();
            if matches!(*outcome, Outcome::InProgress) {
                let waited = self.slot.changed.wait_timeout(outcome, left.min(look_every));
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// Those of what is in progress.
    ///
    /// # Panics
    /// As [`Self::poll`].
    pub fn wait(mut self) -> Result<T, Error> {
        loop {
            if let Poll::Ready(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// The thread does not see the abort: whatever it still builds, it drops.
    fn leave_alone(&mut self) -> Result<T, Error> {
        self.thread = None;
        match std::mem::replace(&mut *self.slot.lock(), Outcome::Taken) {
            Outcome::Known(result) => result,
            _ => Err(aborted(Rank(self.handle.rank()), self.handle.size())),
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has nothing left to do. A panic of it has been seen by the one who asked.
            let _ = thread.join();
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        let Some(thread) = &self.thread else { return };
        if self.process != std::process::id() {
            return std::mem::forget(self.thread.take());
        }
        self.handle.abort();
        let started = Instant::now();
        while !thread.is_finished() && started.elapsed() < ABORT_TAKES {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A communicator that was built nevertheless is dropped here.
        let _ = self.leave_alone();
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("handle", &self.handle).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn handle() -> CommHandle {
        CommHandle::joining(Rank(0), 2)
    }

    #[test]
    fn the_outcome_is_given_once_it_is_known() {
        let (go, wait) = mpsc::channel::<()>();
        let mut pending = Pending::start(handle(), move |_| Ok(wait.recv().map(|()| 7).ok())).unwrap();
        assert_eq!(pending.poll(), Poll::Pending);
        assert_eq!(pending.wait_for(Duration::from_millis(1)), Poll::Pending);
        go.send(()).unwrap();
        assert_eq!(pending.wait_for(Duration::from_secs(60)), Poll::Ready(Ok(Some(7))));
        assert!(
            Pending::start(handle(), |handle| Err::<(), _>(handle.failed(aborted(Rank(0), 2))))
                .unwrap()
                .wait()
                .is_err()
        );
    }

    #[test]
    fn a_thread_that_does_not_see_the_abort_is_not_waited_for() {
        let (go, wait) = mpsc::channel::<()>();
        let pending = Pending::start(handle(), move |_| Ok(wait.recv().is_ok())).unwrap();
        let started = Instant::now();
        pending.abort();
        assert_eq!(pending.wait(), Err(aborted(Rank(0), 2)));
        assert!(started.elapsed() < ABORT_TAKES * 10);
        drop(go);
    }

    #[test]
    fn dropping_it_aborts() {
        let handle = handle();
        let work = |handle: &CommHandle| {
            while !handle.is_aborted_early() {
                std::thread::yield_now();
            }
            Ok(())
        };
        drop(Pending::start(handle.clone(), work).unwrap());
        assert_eq!(handle.state(), CommState::Failed);
    }

    #[test]
    #[should_panic = "panicked"]
    fn a_panic_of_the_work_is_seen_by_who_asks() {
        let _ = Pending::start(handle(), |_| -> Result<(), Error> { panic!("for the test") }).unwrap().wait();
    }
}
