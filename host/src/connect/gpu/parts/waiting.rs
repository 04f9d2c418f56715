//! A call that waits for connections, as the other ranks and a report of stalls see it.

use crate::launch::{Health, SlowWait};
use crate::plan::CallRecord;
use oxccl_shared::abi::Rank;
use std::time::{Duration, Instant};

/// Making connections takes some milliseconds: nothing is said of waits that are shorter.
const NOTED_AFTER: Duration = Duration::from_millis(100);

/// The wait of the caller's thread, until it is dropped.
pub(super) struct Waiting<'a> {
    health: &'a Health,
    during: Option<CallRecord>,
    since: Instant,
}

impl<'a> Waiting<'a> {
    /// It begins now.
    pub fn new(health: &'a Health, during: Option<CallRecord>) -> Waiting<'a> {
        Waiting { health, during, since: Instant::now() }
    }

    /// It goes on, for the rank that `awaited` finds. Called several times in a second.
    pub fn note(&self, awaited: impl FnOnce() -> Option<Rank>) {
        let waited = self.since.elapsed();
        if waited < NOTED_AFTER {
            return;
        }
        if let Some(peer) = awaited() {
            let (during, is_for_network) = (self.during, false);
            let wait = SlowWait { peer, is_for_network, during, waited, looked_at: Instant::now() };
            self.health.note_wait(Some(wait));
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.health.note_wait(None);
    }
}
