//! Asks the machine of one communicator whose calls go on when they have returned, on a thread of its own: the driver may keep that waiting,
//! and the monitor thread waits for nobody.

use crate::launch::{Slept, Standing};
use std::sync::Weak;
use std::time::{Duration, Instant};

/// How often, at least.
pub(super) const POLL_EVERY: Duration = Duration::from_secs(1);
/// How often the kernels of an operation that lasts are looked at, without the driver.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// What was learnt.
#[derive(Default)]
pub(super) struct Polled {
    standing: Standing,
    /// Since when there have been so many calls, and so many of them done.
    since: Duration,
    /// Since when the call under way has been that.
    under_way_since: Duration,
    /// When that was learnt.
    at: Duration,
}

impl Polled {
    /// What is known by now. A rank whose kernels say when they wait is without progress while they do; of another, that has an operation
    /// which is not done, nobody knows better.
    pub fn standing(&self, now: Duration) -> Standing {
        let Polled { standing, since, under_way_since, at } = *self;
        let waited = match standing.kernels {
            // Until the next look it waits on: a kernel, or the caller's thread.
            _ if standing.waits_for.is_some() => {
                standing.waited() + now.saturating_sub(at).min(POLL_EVERY * 2)
            }
            Some(_) => Duration::ZERO,
            None if standing.during.is_some() => now.saturating_sub(since),
            None => Duration::ZERO,
        };
        let lasted = standing.during.map_or(Duration::ZERO, |_| now.saturating_sub(under_way_since));
        Standing { waited_ms: waited.as_millis() as u64, lasted_ms: lasted.as_millis() as u64, ..standing }
    }

    pub fn learn(&mut self, standing: Standing, now: Duration) {
        let before = self.standing;
        if (before.begun, before.done) != (standing.begun, standing.done) {
            self.since = now;
        }
        if before.done != standing.done || before.during.is_none() {
            self.under_way_since = now;
        }
        (self.standing, self.at) = (standing, now);
    }

    /// Another call is under way, though nobody saw the one before it done.
    pub fn goes_on(&mut self, now: Duration) {
        self.under_way_since = now;
    }
}

/// Asks the machine from time to time, until the communicator is gone.
pub(super) fn poll(asked: &Weak<impl Asked>, every: Duration) {
    let mut rounds = Rounds::new(Instant::now(), every);
    loop {
        let (began, rest) = (Instant::now(), rounds.rest);
        std::thread::park_timeout(rest);
        let Some(asked) = asked.upgrade() else { return };
        let woke = Instant::now();
        rounds.round(&*asked, woke, Slept { asked: rest, really: woke - began });
    }
}

/// What is asked in each round.
pub(super) trait Asked {
    /// The call under way has lasted for long: looks at what its kernels wait for.
    fn sample(&self, now: Instant, slept: Slept);
    /// Asks the machine, on the thread that may wait for it. Returns when to ask again, if that is soon.
    fn poll(&self, now: Instant) -> Option<Duration>;
    /// Whether the call under way lasts.
    fn lasts(&self, now: Instant) -> bool;
    /// The time.
    fn now(&self) -> Instant;
}

/// When what is asked.
pub(super) struct Rounds {
    every: Duration,
    due: Instant,
    /// Whether an operation lasts, whose kernels are looked at often.
    is_sampled: bool,
    /// How long to sleep before the next round.
    pub rest: Duration,
}

impl Rounds {
    pub fn new(now: Instant, every: Duration) -> Rounds {
        Rounds { every, due: now + every, is_sampled: false, rest: every }
    }

    pub fn round(&mut self, asked: &impl Asked, woke: Instant, slept: Slept) {
        if self.is_sampled {
            asked.sample(woke, slept);
        }
        if woke >= self.due {
            let soon = asked.poll(woke);
            self.due = asked.now() + soon.map_or(self.every, |soon| soon.min(self.every));
        }
        let now = asked.now();
        self.is_sampled = asked.lasts(now);
        let left = self.due.saturating_duration_since(now);
        self.rest = if self.is_sampled { left.min(SAMPLE_EVERY) } else { left };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Call, CallRecord};
    use oxccl_shared::abi::{DataType, Func, Rank, RedOp};

    /// A GPU to which the program has given `begun` calls, of which `done` are done.
    fn enqueued(begun: u64, done: u64) -> Standing {
        let call =
            Call { func: Func::AllReduce, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: 9 };
        let during = (done < begun).then_some(CallRecord { seq: done, call });
        Standing { begun, done, during, ..Standing::default() }
    }

    #[test]
    fn a_call_of_a_gpu_lasts_from_when_the_one_before_it_is_done() {
        let at = Duration::from_secs;
        let mut polled = Polled::default();
        let lasted = |polled: &Polled, now| polled.standing(at(now)).lasted_ms;
        polled.learn(enqueued(0, 0), at(1));
        assert_eq!(lasted(&polled, 2), 0, "in no call");
        polled.learn(enqueued(1, 0), at(3));
        polled.learn(enqueued(5, 0), at(4));
        assert_eq!(lasted(&polled, 6), 3000, "what is enqueued behind it does not matter");
        polled.learn(enqueued(5, 1), at(7));
        assert_eq!(lasted(&polled, 9), 2000, "the next one");
        polled.goes_on(at(9));
        polled.learn(enqueued(6, 1), at(10));
        assert_eq!(lasted(&polled, 12), 3000, "a later one");
        polled.learn(enqueued(6, 6), at(13));
        assert_eq!(lasted(&polled, 14), 0);
    }
}
