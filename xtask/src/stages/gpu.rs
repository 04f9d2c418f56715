//! Layer: xtask / stages.
//! Takes: tests marked `#[ignore]` whose name contains `needs_gpu`.
//! Gives: them run where a GPU is, and counted as skipped where none is.
//! Never: reports a machine without a GPU as a success of these tests.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::tools::root;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Duration;

pub fn tests() -> Result<Outcome> {
    let suite = || Cmd::cargo().args("test --workspace --locked --lib --tests -- --ignored needs_gpu");
    let listed = suite().arg("--list").quiet().deadline(Duration::from_secs(1800)).run(&root())?;
    if !listed.success {
        bail!("the GPU tests cannot be listed: {}", suite().arg("--list"));
    }
    let tests = count_listed(&listed.text);
    let has_gpu = has_gpu();
    if has_gpu && tests > 0 {
        let output = suite().deadline(Duration::from_secs(1800)).run(&root())?;
        return Ok(Outcome::of(output.success, Tally::of_cargo_test(&output.text)));
    }
    beside::note(format_args!(
        "tests that need a GPU: {tests} skipped; /dev/nvidia0 is {}",
        if has_gpu { "here" } else { "not here" }
    ));
    // Zero: the `tests` stage has counted each ignored test as skipped already.
    Ok(Outcome::Passed(Tally::default()))
}

/// Whether this machine has one.
pub fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists()
}

/// `cargo test -- --list` prints `name: test` per test.
fn count_listed(text: &str) -> usize {
    text.lines().filter(|line| line.ends_with(": test")).count()
}

#[cfg(test)]
mod tests {
    #[test]
    fn listed_tests_are_counted() {
        let text = "needs_gpu_copies: test\nneeds_gpu_reduces: test\n\n2 tests, 0 benchmarks\n";
        assert_eq!(super::count_listed(text), 2);
    }
}
