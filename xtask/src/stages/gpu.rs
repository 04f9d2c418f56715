//! Layer: xtask / stages.
//! Takes: tests marked `#[ignore]` in a module or file named `gpu`.
//! Gives: them run where a GPU is, and counted as skipped where none is.
//! Never: reports a machine without a GPU as a success of these tests.

use super::Outcome;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::tools::root;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Duration;

pub fn tests() -> Result<Outcome> {
    let suite = || Cmd::cargo().args("test --workspace --locked --lib --tests -- --ignored gpu");
    let listed = suite().arg("--list").quiet().deadline(Duration::from_secs(900)).run(&root())?;
    if !listed.success {
        bail!("the GPU tests cannot be listed: {}", suite().arg("--list"));
    }
    let tests = count_listed(&listed.text);
    if Path::new("/dev/nvidia0").exists() && tests > 0 {
        let output = suite().deadline(Duration::from_secs(900)).run(&root())?;
        return Ok(Outcome::of(output.success, Tally::of_cargo_test(&output.text)));
    }
    eprintln!("{tests} tests need a GPU; /dev/nvidia0 is {}", presence());
    // Zero: the `tests` stage has counted each ignored test as skipped already.
    Ok(Outcome::Passed(Tally::default()))
}

fn presence() -> &'static str {
    if Path::new("/dev/nvidia0").exists() { "here" } else { "not here" }
}

/// `cargo test -- --list` prints `name: test` per test.
fn count_listed(text: &str) -> usize {
    text.lines().filter(|line| line.ends_with(": test")).count()
}

#[cfg(test)]
mod tests {
    #[test]
    fn listed_tests_are_counted() {
        let text = "gpu::copies: test\ngpu::reduces: test\n\n2 tests, 0 benchmarks\n";
        assert_eq!(super::count_listed(text), 2);
    }
}
