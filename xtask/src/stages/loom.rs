//! Layer: xtask / stages.
//! Takes: `shared/tests/loom_*.rs`.
//! Gives: them run with loom's atomics behind `shared::sync`.
//! Never: shares a target directory with normal builds: `--cfg loom` would rebuild everything each time.

use super::Outcome;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::tools::{root, target_dir};
use anyhow::Result;
use std::path::Path;
use std::time::Duration;

pub fn all() -> Result<Outcome> {
    run_filtered(None)
}

/// Runs the models whose name contains `filter`.
pub fn run_filtered(filter: Option<&str>) -> Result<Outcome> {
    let mut cargo = models(&target_dir().join("loom"));
    if let Some(filter) = filter {
        cargo = cargo.arg("--").arg(filter);
    }
    let output = cargo.run(&root())?;
    Ok(Outcome::of(output.success, Tally::of_cargo_test(&output.text)))
}

/// Built because the package's other tests need them; the search runs none of them.
const UNUSED: [&str; 3] = ["proptest", "rand", "regex-syntax"];

/// The command that builds every model into `target` and runs it.
pub fn models(target: &Path) -> Cmd {
    let unused = UNUSED.map(|package| format!("--config profile.release.package.{package}.opt-level=0"));
    Cmd::cargo()
        .args("test --release --package oxccl-shared --no-fail-fast --test loom_* --config profile.release.debug=false")
        .args(&unused.join(" "))
        // Release, or the search takes minutes; optimisation changes nothing that loom sees.
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .env("LOOM_MAX_PREEMPTIONS", "3")
        .deadline(Duration::from_secs(1200))
}
