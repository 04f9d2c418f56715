//! Layer: host / bootstrap.
//! Takes: an abort of any thread while a rank joins.
//! Gives: [`Cancel`], which ends the waits of that join.
//! Never: touches a communicator that is ready: its abort is the watch's.

use std::sync::{Arc, Mutex, PoisonError};

use oxccl_shared::sync::{Sys, Word};

/// Cancels one rank's join from any thread. Clones are of the same join.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Nonzero once cancelled. Written under the lock of `phase`.
    called: Word<u32, Sys>,
    /// Nonzero if the join was ended in vain. Written before `called`.
    in_vain: Word<u32, Sys>,
    phase: Mutex<Phase>,
}

#[derive(Default)]
enum Phase {
    /// The rank looks for the root.
    #[default]
    Before,
    /// The rank has a bootstrap, whose waits this ends.
    Joining(Box<dyn Fn() + Send>),
    /// The rank has joined, or failed to.
    Over,
}

impl Cancel {
    /// Ends the join with [`BootstrapError::Aborted`](super::BootstrapError::Aborted), and tells the ranks that this one has met. Nothing once the join is over.
    pub fn cancel(&self) {
        let phase = self.0.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*phase, Phase::Over) {
            return;
        }
        // RELEASE pairs with ACQUIRE in `is_called`.
        self.0.called.store_release(1);
        if let Phase::Joining(give_up) = &*phase {
            give_up();
        }
    }

    /// Ends a join that cannot succeed any more. Nobody has aborted it.
    pub(super) fn end_in_vain(&self) {
        if !self.is_called() {
            self.0.in_vain.store_relaxed(1);
        }
        self.cancel();
    }

    /// Whether the program has cancelled the join.
    pub(super) fn is_abort(&self) -> bool {
        self.is_called() && self.0.in_vain.load_relaxed() == 0
    }

    /// Whether the join is cancelled.
    pub fn is_called(&self) -> bool {
        // ACQUIRE pairs with RELEASE in `cancel`.
        self.0.called.load_acquire() != 0
    }

    /// The join is over: later calls have no effect. Returns whether it was cancelled before.
    pub fn over(&self) -> bool {
        *self.0.phase.lock().unwrap_or_else(PoisonError::into_inner) = Phase::Over;
        self.is_called()
    }

    /// From now on the join has waits that `give_up` ends. Calls it at once if the join is cancelled already.
    pub(super) fn on_call(&self, give_up: impl Fn() + Send + 'static) {
        let mut phase = self.0.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_called() {
            give_up();
        }
        *phase = Phase::Joining(Box::new(give_up));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(cancel: &Cancel) -> Arc<Mutex<u32>> {
        let calls = Arc::new(Mutex::new(0));
        let counter = calls.clone();
        cancel.on_call(move || *counter.lock().unwrap() += 1);
        calls
    }

    #[test]
    fn a_call_reaches_the_join_whether_it_comes_before_or_during() {
        let (before, during) = (Cancel::default(), Cancel::default());
        before.cancel();
        assert_eq!(*counted(&before).lock().unwrap(), 1);
        let calls = counted(&during);
        assert_eq!((*calls.lock().unwrap(), during.is_called()), (0, false));
        during.cancel();
        assert_eq!((*calls.lock().unwrap(), during.is_called()), (1, true));
    }

    #[test]
    fn what_ends_in_vain_was_aborted_by_nobody() {
        let [aborted, in_vain, both] = [(); 3].map(|()| Cancel::default());
        assert!(!aborted.is_abort());
        aborted.cancel();
        in_vain.end_in_vain();
        both.cancel();
        both.end_in_vain();
        assert_eq!([&aborted, &in_vain, &both].map(Cancel::is_abort), [true, false, true]);
        assert!(in_vain.is_called());
    }

    #[test]
    fn a_join_that_is_over_cannot_be_cancelled() {
        let cancel = Cancel::default();
        let calls = counted(&cancel);
        assert!(!cancel.over());
        cancel.cancel();
        assert_eq!((*calls.lock().unwrap(), cancel.is_called()), (0, false));
    }
}
