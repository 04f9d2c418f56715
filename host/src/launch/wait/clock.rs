//! How long the present wait has lasted.

use oxccl_shared::abi::Rank;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Between two looks at the clock at most this part of the timeout counts: a rank whose process was stopped (by a batch system that
/// suspends jobs, by a debugger) knows nothing of that time, and its peers were stopped with it, as likely as not.
const GAPS_MIN: u32 = 4;

/// The clock of one communicator's waits.
pub(super) struct Clock {
    timeout: Duration,
    /// When the present wait was first found to be slow.
    since: Cell<Option<Instant>>,
    /// The last look at the clock in the present wait.
    looked_at: Cell<Option<Instant>>,
    /// Whether the present wait has been found to be over the timeout.
    is_overdue: Cell<bool>,
    /// Who was found to have left during the present wait, and when.
    left: Cell<Option<(Rank, Instant)>>,
}

impl Clock {
    pub(super) fn new(timeout: Duration) -> Clock {
        Clock {
            timeout,
            since: Cell::new(None),
            looked_at: Cell::new(None),
            is_overdue: Cell::new(false),
            left: Cell::new(None),
        }
    }

    /// How long a wait may last.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Another wait begins.
    #[inline]
    pub(super) fn restart(&self) {
        self.since.set(None);
        self.is_overdue.set(false);
        self.left.set(None);
    }

    /// Whether the present wait has been found to be slow.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.since.get().is_some()
    }

    /// Whether the present wait has lasted so long.
    pub(super) fn has_lasted(&self, time: Duration) -> bool {
        self.since.get().is_some_and(|since| since.elapsed() > time)
    }

    /// How long the present wait has lasted, as far as this rank has seen it; nothing when it is looked at for the first time.
    pub(super) fn waited(&self) -> Option<Duration> {
        let now = Instant::now();
        let gap = self.looked_at.replace(Some(now)).map_or(Duration::ZERO, |looked_at| now - looked_at);
        let Some(since) = self.since.get() else {
            self.since.set(Some(now));
            return None;
        };
        let since = since + gap.saturating_sub(self.timeout / GAPS_MIN);
        self.since.set(Some(since));
        Some(now.saturating_duration_since(since))
    }

    /// Whether a wait of this length is over the timeout, and was so before: whoever slept past the timeout, with the data there all
    /// the while, is to look once more.
    pub(super) fn is_over(&self, waited: Duration) -> bool {
        waited > self.timeout && self.is_overdue.replace(true)
    }

    /// When this wait first found that the rank had left: what it sent before is looked for from then on.
    pub(super) fn left_since(&self, rank: Rank) -> Instant {
        let known = self.left.get().filter(|(left, _)| *left == rank);
        let (_, since) = known.unwrap_or_else(|| (rank, Instant::now()));
        self.left.set(Some((rank, since)));
        since
    }
}
