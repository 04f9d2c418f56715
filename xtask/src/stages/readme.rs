//! Layer: xtask / stages.
//! Takes: README.md.
//! Gives: its first `oxccl` command run verbatim, so that the page shows only what works.
//! Never: keeps a copy of that command.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Context, Result};
use std::time::Duration;

const START: &str = "cargo run --release --bin oxccl ";

pub fn first_command() -> Result<Outcome> {
    let readme = std::fs::read_to_string(root().join("README.md")).context("README.md cannot be read")?;
    let line =
        command_in(&readme).with_context(|| format!("README.md has no line that starts with `{START}`"))?;
    let cargo = Cmd::cargo().args(line.trim_start_matches("cargo "));
    // Built beside other stages.
    let output = cargo.deadline(Duration::from_secs(1800)).run(&root())?;
    // nccl-tests' table ends with this line; its absence means that something else was run.
    let table = output.text.contains("# Out of bounds values : 0 OK");
    if output.success && !table {
        beside::note("the command succeeded, but its table does not end with 'Out of bounds values : 0 OK'");
    }
    Ok(Outcome::of_check(output.success && table))
}

fn command_in(readme: &str) -> Option<&str> {
    readme.lines().map(str::trim).find(|line| line.starts_with(START))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_command_is_found() {
        let readme = "# x\n```sh\ncargo run --release --bin oxccl -- perf a\ncargo xtask test\n```\n";
        assert_eq!(super::command_in(readme), Some("cargo run --release --bin oxccl -- perf a"));
        assert_eq!(super::command_in("nothing"), None);
    }
}
