//! Layer: xtask / stages.
//! Takes: `docs/write-your-own.md`, and the crate outside the workspace that it tells of.
//! Gives: every command of the page run as it stands there, and then, on GPUs, the algorithm's kernels.
//! Never: changes the page's commands; counts what needs a GPU as passed where there is none.

use super::Outcome;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::ptx::compiler::Compiler;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

const PAGE: &str = "docs/write-your-own.md";
/// Where the page's command puts the bundle.
const BUNDLE: &str = "target/stranger-ptx/oxccl.oxptx";

pub fn all() -> Result<Outcome> {
    let page = std::fs::read_to_string(root().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let (commands, has_compiler) = (commands(&page), Compiler::find().is_ok());
    ensure!(commands.len() >= 3, "{PAGE} has {} commands", commands.len());
    let (mut tally, mut is_ok) = (Tally::default(), true);
    for command in commands {
        if command.contains("build-ptx") && !has_compiler {
            tally.skipped += 1;
            continue;
        }
        let output = shell(command).run(&root())?;
        let tests = Tally::of_cargo_test(&output.text);
        tally += match (tests == Tally::default(), output.success) {
            (true, true) => Tally::ONE_PASSED,
            (true, false) => Tally::ONE_FAILED,
            (false, _) => tests,
        };
        is_ok &= output.success;
    }
    let has_bundle = has_compiler && root().join(BUNDLE).is_file();
    for (name, can_run) in [("needs_ptx", has_bundle), ("needs_gpu", has_bundle && super::gpu::has_gpu())] {
        // As ignored tests they have been counted as skipped.
        if !can_run {
            continue;
        }
        let line = format!(
            "cargo test --manifest-path tests/stranger/Cargo.toml --test conformance -- --ignored {name}"
        );
        let output =
            shell(&line).env("STRANGER_PTX_PATH", root().join(BUNDLE).to_string_lossy()).run(&root())?;
        let ran = Tally::of_cargo_test(&output.text);
        tally.skipped = tally.skipped.saturating_sub(ran.passed + ran.failed);
        tally += Tally { skipped: 0, ..ran };
        is_ok &= output.success;
    }
    Ok(Outcome::of(is_ok, tally))
}

fn shell(command: &str) -> Cmd {
    Cmd::new("sh")
        .arg("-c")
        .arg(command)
        .env("CARGO_TARGET_DIR", target_dir().to_string_lossy())
        .deadline(Duration::from_secs(1800))
}

/// The lines of the page's blocks of shell.
fn commands(page: &str) -> Vec<&str> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_blocks_of_shell() {
        let page = "a\n```sh\none\ntwo\n```\nb\n```text\nthree\n```\n```sh\nfour\n```\n";
        assert_eq!(commands(page), ["one", "two", "four"]);
    }
}
