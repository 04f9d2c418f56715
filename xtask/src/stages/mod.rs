//! Layer: xtask / stages.
//! Takes: which stages: all, the quick ones, or some by name.
//! Gives: each stage run in order, timed, with the command that repeats it when it fails, and one last line of counts. Stages
//! whose results do not depend on the time they take run last and side by side.
//! Never: hides what it did not run: a stage that cannot run here is counted and named as skipped.

mod amdgcn;
mod checks;
mod outcome;
pub mod fuzz;
pub mod soak;
mod gpu;
mod licences;
pub mod loom;
mod miri;
pub mod mutants;
mod package;
mod ptx;
mod publish;
mod readme;
mod softroce;
mod stranger;
mod suite;
pub mod surface;

pub use outcome::Outcome;

use crate::beside;
use crate::counts::Tally;
use crate::tools;
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

struct Stage {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<Outcome>,
    is_beside: bool,
    runs: Runs,
}

/// Which command a stage belongs to.
#[derive(PartialEq)]
enum Runs {
    /// `cargo xtask test`.
    Full,
    /// That and `cargo xtask test --quick`.
    Always,
    /// `cargo xtask test --quick`: a part of what the full run has as another stage.
    Quick,
}

impl Stage {
    const fn new(name: &'static str, run: fn() -> Result<Outcome>, what: &'static str) -> Stage {
        Stage { name, what, run, is_beside: false, runs: Runs::Full }
    }

    const fn in_both(self) -> Stage {
        Stage { runs: Runs::Always, ..self }
    }

    const fn quick_only(self) -> Stage {
        Stage { runs: Runs::Quick, ..self }
    }

    /// Says that other stages may slow it down without changing what it finds.
    const fn beside_others(self) -> Stage {
        Stage { is_beside: true, ..self }
    }
}

/// Those that run alone stand in the order in which a mistake is cheapest to find, those that run beside others from the longest
/// to the shortest.
const STAGES: &[Stage] = &[
    Stage::new("fmt", checks::fmt, "rustfmt leaves every file as it is").in_both(),
    Stage::new("tidy", checks::tidy, "the house rules (cargo xtask tidy)").in_both(),
    Stage::new("clippy", checks::clippy, "no warning in any target of any member").in_both(),
    Stage::new("units", suite::units, "unit tests, properties, golden plans").quick_only(),
    Stage::new("licences", licences::all, "every crate's licence and source are allowed by .cargo/deny.toml"),
    Stage::new("docs", checks::docs, "the documentation builds without a warning"),
    Stage::new("tests", suite::tests, "unit and integration tests"),
    Stage::new("gpu", gpu::tests, "tests that need an NVIDIA GPU"),
    Stage::new(
        "softroce",
        softroce::tests,
        "InfiniBand over software RoCE, in an emulated guest (40 s, 45 s more to fetch it once)",
    ),
    Stage::new("fuzz", fuzz::short, "every fuzz target for 10 s").beside_others(),
    Stage::new("miri", miri::all, "unsafe code and blocks of many threads under miri").beside_others(),
    Stage::new("ptx", ptx::all, "the GPU kernels: built, assembled, checked; golden tests").beside_others(),
    Stage::new("readme", readme::first_command, "the first command of README.md").beside_others(),
    Stage::new("amdgcn", amdgcn::all, "kernels for AMD GPUs: built and checked, not run; golden tests")
        .beside_others(),
    Stage::new(
        "stranger",
        stranger::all,
        "docs/write-your-own.md: an algorithm from a crate outside, tested and built",
    )
    .beside_others(),
    Stage::new("package", package::all, "tarball, Debian package and Python wheel: made, installed, used")
        .beside_others(),
    Stage::new(
        "publish",
        publish::all,
        "cargo publish --dry-run; what it packs, checked by the oldest Rust that it states",
    )
    .beside_others(),
    Stage::new("surface", surface::check, "what programs can name is what host/public-names.txt says")
        .beside_others(),
    Stage::new("loom", loom::all, "every interleaving of the FIFOs, within loom's bounds").beside_others(),
    Stage::new("doctests", suite::doctests, "the examples in the documentation").beside_others(),
];

/// How many stages run side by side: on more cores each of them can use more by itself.
const BESIDE: usize = 2;

/// Which stages to run.
#[derive(clap::Args)]
pub struct Options {
    /// Run only these stages (repeatable; see --list).
    #[arg(long, value_name = "STAGE")]
    only: Vec<String>,
    /// Run what finds most mistakes in a few minutes: before each commit.
    #[arg(long, conflicts_with = "only")]
    quick: bool,
    /// Print the stages and what each does, and stop.
    #[arg(long)]
    list: bool,
    /// Go on after a failing stage; the exit status still says that something failed.
    #[arg(long)]
    keep_going: bool,
    /// Begin no stage later than this after the start: it is counted and named as skipped.
    #[arg(long, value_name = "SECONDS")]
    begin_within: Option<u64>,
}

/// Of `cargo xtask ci`, which has to end while somebody waits for it: where a machine is half as fast as two cores of 2026, the shortest
/// stages, which come last, may not have their turn.
const CI_BEGINS_WITHIN_SECS: u64 = 4500;

impl Options {
    /// Everything, up to the first failure.
    pub fn all() -> Options {
        Options { only: Vec::new(), quick: false, list: false, keep_going: false, begin_within: None }
    }

    /// The same on a machine that may be slow.
    pub fn ci() -> Options {
        Options { begin_within: Some(CI_BEGINS_WITHIN_SECS), ..Options::all() }
    }

    /// Why no stage begins any more, so long after the start.
    fn too_late(&self, since: Duration) -> Option<String> {
        let within = self.begin_within.filter(|within| since >= Duration::from_secs(*within))?;
        Some(format!("{within} s were over before its turn; `cargo xtask test --only` runs it"))
    }

    fn wants(&self, stage: &Stage) -> bool {
        match stage.runs {
            _ if !self.only.is_empty() => self.only.iter().any(|name| name == stage.name),
            Runs::Full => !self.quick,
            Runs::Always => true,
            Runs::Quick => self.quick,
        }
    }
}

fn print_list() {
    for Stage { name, what, runs, .. } in STAGES {
        let mark = if *runs == Runs::Full { " " } else { "q" };
        println!("{name:<9} {mark} {what}");
    }
    println!("\nq: also run, or only, by `cargo xtask test --quick`");
}

struct Report {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
    /// What it wrote last, if it failed while others ran, whose lines may stand below its own by now.
    last_lines: String,
}

/// How many lines of a failed stage stand again at the end.
const LAST_LINES: usize = 40;

/// Runs the stages that are wanted. Returns whether nothing failed.
pub fn run(options: &Options) -> Result<bool> {
    if options.list {
        print_list();
        return Ok(true);
    }
    if let Some(unknown) = options.only.iter().find(|name| STAGES.iter().all(|stage| stage.name != **name)) {
        bail!("no stage is called '{unknown}'; `cargo xtask test --list` prints them");
    }
    let start = Instant::now();
    let wanted: Vec<&Stage> = STAGES.iter().filter(|stage| options.wants(stage)).collect();
    let wanted_count = wanted.len();
    let has_failed = AtomicBool::new(false);
    let goes_on = || options.keep_going || !has_failed.load(Ordering::Relaxed);
    let unless_failed = |stage: &Stage| {
        if !goes_on() {
            return None;
        }
        let report = run_stage(stage, options.too_late(start.elapsed()));
        has_failed.fetch_or(!report.outcome.is_ok(), Ordering::Relaxed);
        Some(report)
    };
    let (beside, alone): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|stage| stage.is_beside);
    let mut reports: Vec<Report> = alone.into_iter().filter_map(unless_failed).collect();
    if beside.len() > 1 && goes_on() {
        let names: Vec<&str> = beside.iter().map(|stage| stage.name).collect();
        eprintln!("\n=== {BESIDE} at a time, each shown when it has ended: {}", names.join(", "));
    }
    reports.extend(beside::side_by_side(beside, BESIDE, unless_failed).into_iter().flatten());
    print_summary(&reports, wanted_count, start.elapsed());
    Ok(reports.iter().all(|report| report.outcome.is_ok()))
}

/// Runs a stage, unless there is a reason to skip it.
fn run_stage(stage: &Stage, skip: Option<String>) -> Report {
    beside::note(format_args!("\n=== {}: {}", stage.name, stage.what));
    let start = Instant::now();
    let ran = skip.map_or_else(stage.run, |reason| Ok(Outcome::Skipped(reason)));
    let outcome = ran.unwrap_or_else(|error| {
        beside::note(format_args!("xtask: {error:#}"));
        Outcome::Failed(Tally::ONE_FAILED)
    });
    let took = start.elapsed();
    match &outcome {
        Outcome::Passed(tally) => {
            beside::note(format_args!("=== {}: ok in {:.1} s ({tally})", stage.name, took.as_secs_f64()));
        }
        Outcome::Skipped(reason) => beside::note(format_args!("=== {}: skipped: {reason}", stage.name)),
        Outcome::Failed(tally) => {
            beside::note(format_args!(
                "=== {}: FAILED after {:.1} s ({tally})",
                stage.name,
                took.as_secs_f64()
            ));
            beside::note(format_args!("=== to run it again: cargo xtask test --only {}", stage.name));
        }
    }
    let last_lines = if outcome.is_ok() { String::new() } else { beside::last_lines(LAST_LINES) };
    Report { name: stage.name, outcome, took, last_lines }
}

fn print_summary(reports: &[Report], wanted: usize, took: Duration) {
    for Report { name, last_lines, .. } in reports.iter().filter(|report| !report.last_lines.is_empty()) {
        println!("\n=== {name} FAILED; its last lines again:\n{last_lines}");
    }
    println!("\nstage       seconds  result");
    let mut sum = Tally::default();
    for Report { name, outcome, took, .. } in reports {
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
    fn stage_names_are_unique_and_an_unknown_one_is_refused() {
        for (i, stage) in STAGES.iter().enumerate() {
            assert!(STAGES[i + 1..].iter().all(|other| other.name != stage.name), "{}", stage.name);
        }
        let error = run(&Options { only: vec!["nope".into()], ..Options::all() }).unwrap_err();
        assert!(error.to_string().contains("'nope'"));
    }

    #[test]
    fn the_quick_run_is_a_part_of_the_full_one() {
        let names = |options: Options| -> Vec<&str> {
            STAGES.iter().filter(|stage| options.wants(stage)).map(|stage| stage.name).collect()
        };
        let full = names(Options::all());
        assert!(full.len() == STAGES.len() - 1 && !full.contains(&"units"));
        assert_eq!(names(Options { quick: true, ..Options::all() }), ["fmt", "tidy", "clippy", "units"]);
        assert_eq!(names(Options { only: vec!["loom".into()], ..Options::all() }), ["loom"]);
        assert_eq!(names(Options::ci()), full);
    }

    #[test]
    fn a_stage_that_would_begin_too_late_is_skipped_and_says_so() {
        let (ci, within) = (Options::ci(), Duration::from_secs(CI_BEGINS_WITHIN_SECS));
        assert_eq!(ci.too_late(within - Duration::from_secs(1)), None);
        assert_eq!(Options::all().too_late(within * 10), None);
        let stage = Stage::new("x", || panic!("it is not run"), "");
        let report = run_stage(&stage, ci.too_late(within));
        assert!(report.outcome.is_ok() && report.outcome.tally().skipped == 1);
        assert!(matches!(report.outcome, Outcome::Skipped(why) if why.contains("4500 s were over")));
    }
}
