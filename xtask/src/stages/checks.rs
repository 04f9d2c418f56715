//! Layer: xtask / stages.
//! Takes: the sources.
//! Gives: the stages that run nothing of ours: formatting, house rules, lints, documentation.
//! Never: changes a file.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::tidy;
use crate::tools::root;
use anyhow::Result;
use std::time::Duration;

/// The fuzz crate is not a member, so what runs over the workspace passes it by.
const FUZZ_MANIFEST: &str = "tests/fuzz/Cargo.toml";

pub fn fmt() -> Result<Outcome> {
    let workspace = Cmd::cargo().args("fmt --all --check").run(&root())?;
    let fuzz = Cmd::cargo().args("fmt --check --manifest-path").arg(FUZZ_MANIFEST).run(&root())?;
    if !(workspace.success && fuzz.success) {
        beside::note(format_args!("to format: cargo fmt --all && cargo fmt --manifest-path {FUZZ_MANIFEST}"));
    }
    Ok(Outcome::of_check(workspace.success && fuzz.success))
}

pub fn tidy() -> Result<Outcome> {
    Ok(Outcome::of_check(tidy::report(&root(), false)?))
}

pub fn clippy() -> Result<Outcome> {
    let clippy = Cmd::cargo()
        .args("clippy --workspace --all-targets --locked -- -D warnings")
        .deadline(Duration::from_secs(1800));
    Ok(Outcome::of_check(clippy.run(&root())?.success))
}

/// Libraries only: the tool `oxccl` would write its pages over those of the library of that name.
pub fn docs() -> Result<Outcome> {
    let doc =
        Cmd::cargo().args("doc --workspace --lib --no-deps --locked").env("RUSTDOCFLAGS", "-D warnings");
    Ok(Outcome::of_check(doc.run(&root())?.success))
}
