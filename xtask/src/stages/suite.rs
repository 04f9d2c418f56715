//! Layer: xtask / stages.
//! Takes: the workspace's tests, iproute2 where it can be had.
//! Gives: them run, by nextest where it is installed (a process per test, each with a deadline), else by cargo.
//! Never: runs tests marked `#[ignore]`; they are counted as skipped.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::tools::{self, root};
use anyhow::Result;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(2700);

pub fn tests() -> Result<Outcome> {
    if let Err(reason) = tools::ensure_iproute2() {
        beside::note(format_args!("tests with several hosts will be skipped: {reason:#}"));
    }
    if tools::has_nextest() {
        let nextest = Cmd::cargo()
            .args("nextest run --workspace --locked --config-file xtask/nextest.toml --no-tests pass")
            .arg("--test-threads")
            .arg(side_by_side().to_string())
            .deadline(DEADLINE);
        let output = nextest.run(&root())?;
        return Ok(Outcome::of(output.success, Tally::of_nextest(&output.text)));
    }
    let cargo = Cmd::cargo()
        .args("test --workspace --locked --lib --bins --tests --examples --no-fail-fast -- -q")
        .deadline(DEADLINE);
    let output = cargo.run(&root())?;
    Ok(Outcome::of(output.success, Tally::of_cargo_test(&output.text)))
}

/// How many tests run at a time. Many wait, for a time to be over or another process: one more for two processors keeps them busy.
fn side_by_side() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors + processors.div_ceil(2)
}

/// What needs no other program: unit tests, properties of schedules and plans, the golden plans of the tool. Fewer random cases
/// where a property leaves their number open.
pub fn units() -> Result<Outcome> {
    const CASES: &str = "32";
    const TARGETS: &str = "--workspace --locked --lib --bins --test pure --test explain";
    let run = |cargo: Cmd| cargo.env("PROPTEST_CASES", CASES).deadline(DEADLINE).run(&root());
    if tools::has_nextest() {
        let nextest = Cmd::cargo().args("nextest run --config-file xtask/nextest.toml").args(TARGETS);
        let output = run(nextest)?;
        return Ok(Outcome::of(output.success, Tally::of_nextest(&output.text)));
    }
    let output = run(Cmd::cargo().arg("test").args(TARGETS).args("--no-fail-fast -- -q"))?;
    Ok(Outcome::of(output.success, Tally::of_cargo_test(&output.text)))
}

pub fn doctests() -> Result<Outcome> {
    let doc = Cmd::cargo().args("test --workspace --locked --doc --no-fail-fast -- -q").deadline(DEADLINE);
    let output = doc.run(&root())?;
    Ok(Outcome::of(output.success, Tally::of_cargo_test(&output.text)))
}
