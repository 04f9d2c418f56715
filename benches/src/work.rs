//! Layer: perf / work.
//! Takes: an amount of arithmetic.
//! Gives: a computation of so much, in pieces, for measuring what goes on beside it.
//! Never: touches memory.

use std::hint::black_box;
use std::time::Instant;

/// A computation that is interrupted by tests.
#[derive(Clone, Copy, Default, Debug)]
pub struct Work {
    /// Of arithmetic, each some nanoseconds.
    pub rounds: u64,
    /// Tests of the request, at equal distances.
    pub tests: u32,
}

impl Work {
    /// Runs all of it: `piece` by piece, each call one, until nothing is left.
    pub fn pieces(self) -> impl FnMut() -> bool {
        let each = self.rounds / (u64::from(self.tests) + 1);
        let mut left = if self.rounds == 0 { 0 } else { self.tests + 1 };
        move || {
            if left == 0 {
                return false;
            }
            compute(each);
            left -= 1;
            left > 0
        }
    }
}

/// Arithmetic that depends on what came before it, so that no processor can do it faster side by side.
pub fn compute(rounds: u64) {
    let mut value = black_box(1.000_1_f64);
    for _ in 0..rounds {
        value = value.mul_add(black_box(0.999_9), 1e-4);
    }
    black_box(value);
}

/// Rounds of arithmetic in a second, when nothing disturbs.
pub fn rounds_per_second() -> f64 {
    const ROUNDS: u64 = 200_000;
    let seconds = |_| {
        let start = Instant::now();
        compute(ROUNDS);
        start.elapsed().as_secs_f64()
    };
    ROUNDS as f64 / (0..9).map(seconds).fold(f64::INFINITY, f64::min)
}
