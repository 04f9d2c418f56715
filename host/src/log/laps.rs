//! How long each step of an init takes, for who asks why one is slow.

use oxccl_shared::abi::Rank;
use std::time::Instant;

/// A rank's stopwatch. Its times are logged at the level `debug`.
pub(crate) struct Laps {
    rank: Rank,
    since: Instant,
}

impl Laps {
    pub fn start(rank: Rank) -> Laps {
        Laps { rank, since: Instant::now() }
    }

    /// This step is done. The next one begins.
    pub fn done(&mut self, step: &'static str) {
        let now = Instant::now();
        let took = now.duration_since(self.since);
        self.since = now;
        tracing::debug!(target: "oxccl::init", rank = %self.rank, ?took, "{step}");
    }
}
