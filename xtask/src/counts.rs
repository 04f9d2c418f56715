//! Layer: xtask.
//! Takes: what a test runner printed.
//! Gives: how many tests passed, failed and were skipped.
//! Never: decides success; the exit status does.

use std::fmt;
use std::ops::AddAssign;

/// Numbers of tests.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Tally {
    /// One check that passed.
    pub const ONE_PASSED: Tally = Tally { passed: 1, failed: 0, skipped: 0 };
    /// One check that failed.
    pub const ONE_FAILED: Tally = Tally { passed: 0, failed: 1, skipped: 0 };

    /// Of `cargo test`: the sum of the `test result:` lines.
    pub fn of_cargo_test(text: &str) -> Tally {
        let mut sum = Tally::default();
        for line in text.lines().filter(|line| line.trim_start().starts_with("test result:")) {
            sum.passed += number_before(line, " passed");
            sum.failed += number_before(line, " failed");
            sum.skipped += number_before(line, " ignored");
        }
        sum
    }

    /// Of `cargo nextest run`: its `Summary` line, as in
    /// `Summary [   0.1s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 3 skipped`.
    pub fn of_nextest(text: &str) -> Tally {
        let Some(line) = text.lines().rfind(|line| line.trim_start().starts_with("Summary [")) else {
            return Tally::default();
        };
        let failed =
            [" failed", " timed out", " exec failed"].iter().map(|what| number_before(line, what)).sum();
        Tally { passed: number_before(line, " passed"), failed, skipped: number_before(line, " skipped") }
    }
}

/// The number that stands directly before `what`, or 0.
fn number_before(line: &str, what: &str) -> u64 {
    let Some(end) = line.find(what) else { return 0 };
    let digits = line[..end].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    line[digits..end].parse().unwrap_or(0)
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_test_lines_add_up() {
        let text = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
                    test a ... ok\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        assert_eq!(Tally::of_cargo_test(text), Tally { passed: 15, failed: 2, skipped: 1 });
    }

    #[test]
    fn nextest_counts_timeouts_as_failures() {
        let text =
            "     Summary [   1.234s] 10 tests run: 7 passed (1 slow), 2 failed, 1 timed out, 4 skipped\n";
        assert_eq!(Tally::of_nextest(text), Tally { passed: 7, failed: 3, skipped: 4 });
    }

    #[test]
    fn silence_counts_nothing() {
        assert_eq!(Tally::of_nextest(""), Tally::default());
        assert_eq!(Tally::of_cargo_test("error: could not compile"), Tally::default());
    }
}
