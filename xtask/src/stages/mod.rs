//! Layer: xtask / stages.
//! Takes: the names of stages, or none for all.
//! Gives: each stage run in order, timed, with the command that repeats it when it fails, and one last line of counts.
//! Never: hides what it did not run: a stage that cannot run here is counted and named as skipped.

mod checks;
pub mod fuzz;
pub mod soak;
mod gpu;
pub mod loom;
mod miri;
pub mod mutants;
mod ptx;
mod readme;
mod softroce;
mod suite;

use crate::counts::Tally;
use crate::tools;
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

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
    fn of(success: bool, tally: Tally) -> Outcome {
        match (success, tally.failed) {
            (true, 0) => Outcome::Passed(tally),
            (_, 0) => Outcome::Failed(Tally { failed: 1, ..tally }),
            _ => Outcome::Failed(tally),
        }
    }

    /// Of something that either passes or fails as a whole.
    fn of_check(success: bool) -> Outcome {
        if success { Outcome::Passed(Tally::ONE_PASSED) } else { Outcome::Failed(Tally::ONE_FAILED) }
    }

    /// Whether nothing failed.
    pub fn is_ok(&self) -> bool {
        !matches!(self, Outcome::Failed(_))
    }

    fn tally(&self) -> Tally {
        match self {
            Outcome::Passed(tally) | Outcome::Failed(tally) => *tally,
            Outcome::Skipped(_) => Tally { skipped: 1, ..Tally::default() },
        }
    }
}

struct Stage {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<Outcome>,
}

/// In the order in which a mistake is cheapest to find.
const STAGES: &[Stage] = &[
    Stage { name: "fmt", what: "rustfmt leaves every file as it is", run: checks::fmt },
    Stage { name: "tidy", what: "the house rules (cargo xtask tidy)", run: checks::tidy },
    Stage { name: "clippy", what: "no warning in any target of any member", run: checks::clippy },
    Stage { name: "docs", what: "the documentation builds without a warning", run: checks::docs },
    Stage { name: "tests", what: "unit and integration tests", run: suite::tests },
    Stage { name: "doctests", what: "the examples in the documentation", run: suite::doctests },
    Stage { name: "readme", what: "the first command of README.md", run: readme::first_command },
    Stage {
        name: "softroce",
        what: "InfiniBand over software RoCE, in an emulated guest (40 s, 45 s more to fetch it once)",
        run: softroce::tests,
    },
    Stage { name: "loom", what: "every interleaving of the FIFOs, within loom's bounds", run: loom::all },
    Stage { name: "miri", what: "unsafe code and blocks of many threads under miri", run: miri::all },
    Stage { name: "fuzz", what: "every fuzz target for 20 s", run: fuzz::short },
    Stage { name: "ptx", what: "the GPU kernels: built, assembled, checked; golden tests", run: ptx::all },
    Stage { name: "gpu", what: "tests that need an NVIDIA GPU", run: gpu::tests },
];

/// One line per stage.
pub fn print_list() {
    for stage in STAGES {
        println!("{:<9} {}", stage.name, stage.what);
    }
}

struct Report {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

/// Runs the stages named, or all. Returns whether nothing failed.
pub fn run(only: &[String], keep_going: bool) -> Result<bool> {
    if let Some(unknown) = only.iter().find(|name| STAGES.iter().all(|stage| stage.name != **name)) {
        bail!("no stage is called '{unknown}'; `cargo xtask test --list` prints them");
    }
    let wanted = |stage: &&Stage| only.is_empty() || only.iter().any(|name| name == stage.name);
    let start = Instant::now();
    let mut reports: Vec<Report> = Vec::new();
    for stage in STAGES.iter().filter(wanted) {
        let report = run_stage(stage);
        let failed = !report.outcome.is_ok();
        reports.push(report);
        if failed && !keep_going {
            break;
        }
    }
    let wanted_count = STAGES.iter().filter(wanted).count();
    print_summary(&reports, wanted_count, start.elapsed());
    Ok(reports.iter().all(|report| report.outcome.is_ok()))
}

fn run_stage(stage: &Stage) -> Report {
    eprintln!("\n=== {}: {}", stage.name, stage.what);
    let start = Instant::now();
    let outcome = (stage.run)().unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        Outcome::Failed(Tally::ONE_FAILED)
    });
    let took = start.elapsed();
    match &outcome {
        Outcome::Passed(tally) => {
            eprintln!("=== {}: ok in {:.1} s ({tally})", stage.name, took.as_secs_f64())
        }
        Outcome::Skipped(reason) => eprintln!("=== {}: skipped: {reason}", stage.name),
        Outcome::Failed(tally) => {
            eprintln!("=== {}: FAILED after {:.1} s ({tally})", stage.name, took.as_secs_f64());
            eprintln!("=== to run it again: cargo xtask test --only {}", stage.name);
        }
    }
    Report { name: stage.name, outcome, took }
}

fn print_summary(reports: &[Report], wanted: usize, took: Duration) {
    println!("\nstage       seconds  result");
    let mut sum = Tally::default();
    for Report { name, outcome, took } in reports {
        sum += outcome.tally();
        let result = match outcome {
            Outcome::Passed(tally) => format!("{tally}"),
            Outcome::Failed(tally) => format!("FAILED: {tally}"),
            Outcome::Skipped(reason) => format!("skipped: {reason}"),
        };
        println!("{name:<9} {:>9.1}  {result}", took.as_secs_f64());
    }
    if reports.len() < wanted {
        println!("{} later stages were not run", wanted - reports.len());
    }
    let root = tools::root();
    println!("{} in {:.0} s ({})", sum, took.as_secs_f64(), root.display());
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

    #[test]
    fn stage_names_are_unique_and_an_unknown_one_is_refused() {
        for (i, stage) in STAGES.iter().enumerate() {
            assert!(STAGES[i + 1..].iter().all(|other| other.name != stage.name), "{}", stage.name);
        }
        let error = run(&["nope".into()], false).unwrap_err();
        assert!(error.to_string().contains("'nope'"));
    }
}
