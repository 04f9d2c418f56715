//! What a proxy's thread does when there is nothing to do.

use oxccl_shared::sync::cpu_relax;
use std::time::Duration;

/// How patiently to look for work: first busily, then less and less so. Counts are looks in a row that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idle {
    /// Looks without a pause.
    pub spins: u32,
    /// Then looks with a processor's pause before each.
    pub pauses: u32,
    /// Then looks with the processor offered to other threads before each.
    pub yields: u32,
    /// Then sleeps of at most this before each; none: it goes on yielding. An order ends a sleep at once. While no operation is
    /// under way, a sleep lasts until there is one.
    pub sleep: Option<Duration>,
}

impl Idle {
    /// Never leaves the processor: for a core of its own.
    pub const SPIN: Idle = Idle { spins: u32::MAX, pauses: 0, yields: 0, sleep: None };
    /// Busy while operations are under way, asleep soon after: a look with its pause takes 0.1 to 0.5 us, so that some milliseconds go
    /// by first. Whoever sleeps earlier sleeps between the hops of an operation, and every sleep costs its 50 us and more.
    pub const BALANCED: Idle =
        Idle { spins: 100, pauses: 20_000, yields: 2000, sleep: Some(Duration::from_micros(50)) };
    /// For machines with fewer cores than threads.
    pub const FRUGAL: Idle =
        Idle { spins: 1, pauses: 10, yields: 20, sleep: Some(Duration::from_micros(200)) };
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    /// Look again at once.
    None,
    Pause,
    Yield,
    /// For at most so long, or until woken.
    Sleep(Option<Duration>),
}

/// How far an idle thread is.
pub(super) struct Idler {
    idle: Idle,
    looks: u32,
}

impl Idler {
    pub(super) fn new(idle: Idle) -> Idler {
        Idler { idle, looks: 0 }
    }

    /// There was work.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.looks = 0;
    }

    /// There was none; `is_quiet` if no operation is under way either.
    #[inline]
    pub(super) fn next(&mut self, is_quiet: bool) -> Rest {
        let Idle { spins, pauses, yields, sleep } = self.idle;
        let looks = self.looks;
        // It stops below what a count that means "without end" has.
        self.looks = looks.saturating_add(1).min(u32::MAX - 1);
        let paused = spins.saturating_add(pauses);
        match sleep {
            _ if looks < spins => Rest::None,
            _ if looks < paused => Rest::Pause,
            None => Rest::Yield,
            Some(_) if looks < paused.saturating_add(yields) => Rest::Yield,
            Some(_) if is_quiet => Rest::Sleep(None),
            Some(sleep) => Rest::Sleep(Some(sleep)),
        }
    }
}

impl Rest {
    /// Rests. A token left by a waker ends the sleep that it was left for, also if it came before.
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
        spinner.looks = u32::MAX - 500;
        assert!((0..1000).all(|_| spinner.next(true) == Rest::None));
        let mut yielder = Idler::new(Idle { spins: 0, pauses: 0, yields: 0, sleep: None });
        assert!((0..1000).all(|_| yielder.next(true) == Rest::Yield));
    }
}
