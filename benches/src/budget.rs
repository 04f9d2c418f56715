//! Layer: perf / budget.
//! Takes: seconds that a run may last.
//! Gives: what a collective, a size, a round may take of what is left.
//! Never: decides by itself on one rank: whoever asks passes a number on which the ranks have agreed.

use std::time::{Duration, Instant};

/// The end of a run, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    start: Instant,
    /// Seconds after `start`; infinite where there is no end.
    end: f64,
}

impl Budget {
    /// A budget that begins now.
    pub fn new(time: Option<Duration>) -> Budget {
        Budget { start: Instant::now(), end: time.map_or(f64::INFINITY, |time| time.as_secs_f64()) }
    }

    /// Seconds left; none where the result is not positive.
    pub fn left(&self) -> f64 {
        self.end - self.start.elapsed().as_secs_f64()
    }

    /// Seconds since it began.
    pub fn spent(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// A budget that ends when the first of `parts` equal parts of what is left is used up.
    pub fn part(&self, parts: usize) -> Budget {
        let left = self.left();
        if left.is_infinite() {
            return *self;
        }
        let share = left / parts.max(1) as f64;
        Budget { start: self.start, end: self.end - left + share }
    }
}

/// Rounds that fit: `wanted`, or as many rounds of `round_seconds` as there is time, one at least. None where no time is left.
pub fn rounds(seconds: f64, round_seconds: f64, wanted: u32) -> Option<u32> {
    if seconds <= 0.0 {
        return None;
    }
    // A fifth stays for what is not a round: warming up, checking.
    let fit = 0.8 * seconds / round_seconds.max(1e-9);
    Some(if fit >= f64::from(wanted) { wanted } else { (fit as u32).max(1) })
}

/// Operations of one round of `round_seconds` that fit: as many as were asked for, or fewer, in graphs of so many.
pub fn iters_that_fit(asked: u32, graph: u32, seconds: f64, round_seconds: f64) -> u32 {
    let share = (0.8 * seconds / round_seconds.max(1e-9)).clamp(0.0, 1.0);
    let (fit, step) = ((f64::from(asked) * share) as u32, graph.max(1));
    (fit / step * step).max(step).min(asked.max(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `-n 4294967295 --time-budget 3` ran until it was killed.
    #[test]
    fn operations_that_were_asked_for_fit_the_budget_too() {
        assert_eq!(iters_that_fit(20, 0, 10.0, 1.0), 20);
        assert_eq!(iters_that_fit(u32::MAX, 0, 3.0, 4_294.967_295), 2_400_000);
        assert_eq!(iters_that_fit(1000, 20, 1.0, 10.0), 80);
        assert_eq!(iters_that_fit(1000, 20, 1.0, 1e9), 20);
        assert_eq!(iters_that_fit(7, 0, 0.1, 1e9), 1);
        assert_eq!(iters_that_fit(u32::MAX, 0, f64::INFINITY, 4000.0), u32::MAX);
    }

    #[test]
    fn without_an_end_everything_fits() {
        let budget = Budget::new(None);
        assert_eq!(budget.left(), f64::INFINITY);
        assert_eq!(rounds(budget.part(6).left(), 1e9, 5), Some(5));
    }

    #[test]
    fn parts_share_what_is_left() {
        let budget = Budget::new(Some(Duration::from_secs(60)));
        let first = budget.part(6).left();
        assert!((9.0..=10.0).contains(&first), "{first}");
        // What the first part leaves over is the others'.
        assert!(budget.part(5).left() > 11.0);
        assert!(budget.part(1).left() > 59.0);
    }

    #[test]
    fn rounds_are_reduced_before_a_size_is_left_out() {
        assert_eq!(rounds(10.0, 1.0, 5), Some(5));
        assert_eq!(rounds(4.0, 1.0, 5), Some(3));
        assert_eq!(rounds(0.1, 1.0, 5), Some(1));
        assert_eq!(rounds(0.0, 1.0, 5), None);
        assert_eq!(rounds(-3.0, 1.0, 5), None);
    }
}
