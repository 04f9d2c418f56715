//! Back-off of an idle proxy thread.

use oxccl_shared::sync::cpu_relax;
use std::time::Duration;

/// A back-off policy. Counts are consecutive polls that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idle {
    /// Polls without a pause.
    pub spins: u32,
    /// Then polls after a CPU pause instruction.
    pub pauses: u32,
    /// Then polls after yielding the CPU.
    pub yields: u32,
    /// Then sleeps of at most this between polls; none: keeps yielding. An order ends a sleep at once. While no
    /// operation is in flight, the thread sleeps until the next order.
    pub sleep: Option<Duration>,
}

impl Idle {
    /// Always polls: for a dedicated core.
    pub const SPIN: Idle = Idle { spins: u32::MAX, pauses: 0, yields: 0, sleep: None };
    /// Polls while operations are in flight, and sleeps soon after: a poll with its pause takes 0.1 to 0.5 us, so
    /// some milliseconds pass first. A thread that sleeps earlier sleeps between the hops of an operation, and every
    /// sleep costs 50 us or more.
    pub const BALANCED: Idle =
        Idle { spins: 100, pauses: 20_000, yields: 2000, sleep: Some(Duration::from_micros(50)) };
    /// For machines with fewer cores than threads.
    pub const FRUGAL: Idle =
        Idle { spins: 1, pauses: 10, yields: 20, sleep: Some(Duration::from_micros(200)) };
}

/// The next step of the back-off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    /// Poll again at once.
    None,
    Pause,
    Yield,
    /// Sleep for at most this long, or until woken.
    Sleep(Option<Duration>),
}

/// State of the back-off.
pub(super) struct Idler {
    idle: Idle,
    polls: u32,
}

impl Idler {
    pub(super) fn new(idle: Idle) -> Idler {
        Idler { idle, polls: 0 }
    }

    /// Restarts the back-off after work.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.polls = 0;
    }

    /// The next step after a poll without work; `is_quiet` if no operation is in flight.
    #[inline]
    pub(super) fn next(&mut self, is_quiet: bool) -> Rest {
        let Idle { spins, pauses, yields, sleep } = self.idle;
        let polls = self.polls;
        // Saturates below the count that means "unlimited".
        self.polls = polls.saturating_add(1).min(u32::MAX - 1);
        let paused = spins.saturating_add(pauses);
        match sleep {
            _ if polls < spins => Rest::None,
            _ if polls < paused => Rest::Pause,
            None => Rest::Yield,
            Some(_) if polls < paused.saturating_add(yields) => Rest::Yield,
            Some(_) if is_quiet => Rest::Sleep(None),
            Some(sleep) => Rest::Sleep(Some(sleep)),
        }
    }
}

impl Rest {
    /// Carries it out. A waker's token ends the sleep, even if it came before.
    pub(super) fn take(self) {
        match self {
            Rest::None => {}
            Rest::Pause => cpu_relax(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep(Some(sleep)) => std::thread::park_timeout(sleep),
            Rest::Sleep(None) => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_in_sleep_and_work_restores_it() {
        let short = Duration::from_micros(7);
        let mut idler = Idler::new(Idle { spins: 2, pauses: 1, yields: 1, sleep: Some(short) });
        for _ in 0..2 {
            let rests: Vec<Rest> = (0..5).map(|_| idler.next(false)).collect();
            let asleep = Rest::Sleep(Some(short));
            assert_eq!(rests, [Rest::None, Rest::None, Rest::Pause, Rest::Yield, asleep]);
            assert_eq!(idler.next(true), Rest::Sleep(None), "nothing under way: until woken");
            idler.reset();
        }
        let mut spinner = Idler::new(Idle::SPIN);
        spinner.polls = u32::MAX - 500;
        assert!((0..1000).all(|_| spinner.next(true) == Rest::None));
        let mut yielder = Idler::new(Idle { spins: 0, pauses: 0, yields: 0, sleep: None });
        assert!((0..1000).all(|_| yielder.next(true) == Rest::Yield));
    }
}
