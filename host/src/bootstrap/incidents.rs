//! Layer: host / bootstrap.
//! Takes: what happens rarely to the connections of those who watch each other: strangers come, neighbours are searched for.
//! Gives: [`Incidents`]: how often so far, for who asks.
//! Never: is touched by an operation.

use oxccl_shared::abi::Rank;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often each has happened, of one rank's communicator.
#[derive(Debug, Default)]
pub struct Incidents(Mutex<Counts>);

/// The counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Connections to this rank's listener that were refused: they did not prove that they belong here, or had no business.
    pub refusals: u64,
    /// Of connections to ranks that took a lost neighbour's place.
    pub searches: BTreeMap<Rank, Searches>,
}

/// Searches for a new neighbour that came to one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Searches {
    /// Connections made.
    pub reconnects: u64,
    /// Attempts without one.
    pub retries: u64,
}

impl Incidents {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.lock().clone()
    }

    pub(super) fn refused(&self, refusals: u64) {
        self.lock().refusals = refusals;
    }

    pub(super) fn reconnected(&self, to: Rank) {
        self.lock().searches.entry(to).or_default().reconnects += 1;
    }

    pub(super) fn tried(&self, to: Rank) {
        self.lock().searches.entry(to).or_default().retries += 1;
    }
}
