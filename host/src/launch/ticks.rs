//! A clock for the hot path: the processor's time stamp counter where it runs evenly, else the system's monotonic clock.
//!
//! Reading the counter takes a few nanoseconds, a third of what the system's clock takes. What its ticks mean is found when somebody
//! asks: from two moments at which both it and the time of day were read.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One communicator's clock.
#[derive(Debug)]
pub(super) struct Ticks {
    /// Whether the processor's counter is read.
    is_counter: bool,
    made: Instant,
    first: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Moment {
    ticks: u64,
    unix_ns: u64,
}

/// What ticks mean, as far as is known by now.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    first: Moment,
    last: Moment,
}

impl Ticks {
    pub fn new() -> Ticks {
        let mut ticks = Ticks {
            is_counter: has_even_counter(),
            made: Instant::now(),
            first: Moment { ticks: 0, unix_ns: 0 },
        };
        ticks.first = ticks.moment();
        ticks
    }

    /// Ticks since any moment, at least 1.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        if self.is_counter { counter() } else { self.made.elapsed().as_nanos() as u64 + 1 }
    }

    fn moment(&self) -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Moment { ticks: self.now(), unix_ns: unix.as_nanos() as u64 }
    }

    pub fn scale(&self) -> Scale {
        Scale { first: self.first, last: self.moment() }
    }
}

impl Scale {
    /// Nanoseconds since 1970.
    pub fn unix_ns(&self, ticks: u64) -> u64 {
        let Scale { first, last } = self;
        let at = first.unix_ns as i128 + self.ns(i128::from(ticks) - i128::from(first.ticks));
        at.clamp(0, i128::from(last.unix_ns)) as u64
    }

    /// How long so many ticks last.
    pub fn lasts(&self, ticks: u64) -> Duration {
        Duration::from_nanos(self.ns(i128::from(ticks)).clamp(0, i128::from(u64::MAX)) as u64)
    }

    /// How long ago that was.
    pub fn ago(&self, ticks: u64) -> Duration {
        self.lasts(self.last.ticks.saturating_sub(ticks))
    }

    fn ns(&self, ticks: i128) -> i128 {
        let Scale { first, last } = self;
        let (span_ticks, span_ns) =
            (last.ticks.saturating_sub(first.ticks), last.unix_ns.saturating_sub(first.unix_ns));
        if span_ticks == 0 { 0 } else { ticks * i128::from(span_ns) / i128::from(span_ticks) }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; only a kernel that forbids it (PR_SET_TSC) would end the program, as it would
    // every program that asks the time.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn counter() -> u64 {
    1
}

/// Whether the counter runs at the same pace in all states of the processor: CPUID leaf 8000_0007h, EDX bit 8 (Intel SDM, volume 3, 18.17.1).
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_even_counter() -> bool {
    use core::arch::x86_64::__cpuid;
    #[allow(unused_unsafe, reason = "newer compilers have it as a safe function")]
    // SAFETY: every x86-64 processor has the instruction.
    let (highest, power) = unsafe { (__cpuid(0x8000_0000).eax, __cpuid(0x8000_0007).edx) };
    highest >= 0x8000_0007 && power & 1 << 8 != 0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn has_even_counter() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_times_of_day() {
        for is_counter in [has_even_counter(), false] {
            let mut clock = Ticks::new();
            clock.is_counter = is_counter;
            clock.first = clock.moment();
            let (before, began) = (SystemTime::now(), clock.now());
            std::thread::sleep(Duration::from_millis(20));
            let scale = clock.scale();
            let lasted = scale.lasts(clock.now() - began);
            assert!(lasted > Duration::from_millis(15) && lasted < Duration::from_secs(10), "{lasted:?}");
            let unix = before.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
            assert!(scale.unix_ns(began).abs_diff(unix) < 10_000_000, "{is_counter}");
            assert!(scale.ago(began) >= Duration::from_millis(15));
        }
    }

    #[test]
    fn a_clock_without_a_span_gives_no_nonsense() {
        let moment = Moment { ticks: 7, unix_ns: 100 };
        let scale = Scale { first: moment, last: moment };
        assert_eq!((scale.unix_ns(u64::MAX), scale.lasts(u64::MAX)), (100, Duration::ZERO));
    }
}
