//! Layer: xtask / stages.
//! Takes: the unit tests of `oxccl-shared` around its unsafe code: cells, FIFOs, lines.
//! Gives: them run by miri.
//! Never: fails because no nightly can be had; that is a skipped stage. Runs the exhaustive arithmetic tests: that code
//! is safe, and miri is a thousand times slower than the machine.

use super::Outcome;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::tools::{self, NIGHTLY, root, target_dir};
use anyhow::Result;
use std::time::Duration;

pub fn shared() -> Result<Outcome> {
    if let Err(reason) = tools::ensure_miri() {
        return Ok(Outcome::Skipped(format!("{reason:#}")));
    }
    let miri = Cmd::cargo()
        .arg(format!("+{NIGHTLY}"))
        .args("miri test --locked --package oxccl-shared --lib --no-fail-fast -- abi:: sync:: fifo:: proto::")
        .env("CARGO_TARGET_DIR", target_dir().join("miri").to_string_lossy())
        .deadline(Duration::from_secs(600));
    let output = miri.run(&root())?;
    Ok(Outcome::of(output.success, Tally::of_cargo_test(&output.text)))
}
