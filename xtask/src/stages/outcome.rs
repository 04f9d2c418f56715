//! Layer: xtask / stages.
//! Takes: an exit status and the tests counted.
//! Gives: how a stage ended.
//! Never: runs one.

use crate::counts::Tally;

/// What a stage says of itself.
pub enum Outcome {
    /// Everything it ran passed.
    Passed(Tally),
    /// Something failed, or nothing could be built.
    Failed(Tally),
    /// It cannot run on this machine; the reason, and the command that would change that.
    Skipped(String),
}

impl Outcome {
    /// From an exit status and the tests counted. A failure without a counted test (it did not build) counts as one.
    pub fn of(success: bool, tally: Tally) -> Outcome {
        match (success, tally.failed) {
            (true, 0) => Outcome::Passed(tally),
            (_, 0) => Outcome::Failed(Tally { failed: 1, ..tally }),
            _ => Outcome::Failed(tally),
        }
    }

    /// Of something that either passes or fails as a whole.
    pub fn of_check(success: bool) -> Outcome {
        if success { Outcome::Passed(Tally::ONE_PASSED) } else { Outcome::Failed(Tally::ONE_FAILED) }
    }

    /// Whether nothing failed.
    pub fn is_ok(&self) -> bool {
        !matches!(self, Outcome::Failed(_))
    }

    pub fn tally(&self) -> Tally {
        match self {
            Outcome::Passed(tally) | Outcome::Failed(tally) => *tally,
            Outcome::Skipped(_) => Tally { skipped: 1, ..Tally::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_failure_counts_as_one_failed() {
        assert_eq!(Outcome::of(false, Tally::default()).tally(), Tally::ONE_FAILED);
        assert!(!Outcome::of(false, Tally::default()).is_ok());
    }

    #[test]
    fn a_failed_test_fails_the_stage_whatever_the_status() {
        let tally = Tally { passed: 5, failed: 1, skipped: 0 };
        assert!(!Outcome::of(true, tally).is_ok());
    }

    #[test]
    fn a_skipped_stage_is_counted() {
        assert_eq!(Outcome::Skipped("no GPU".into()).tally().skipped, 1);
    }
}
