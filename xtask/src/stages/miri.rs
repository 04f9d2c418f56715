//! Layer: xtask / stages.
//! Takes: the unit tests of `oxccl-shared` around its unsafe code (cells, FIFOs, lines), and the kernels of `oxccl-device` under
//! blocks of many threads, with the least of everything.
//! Gives: them run by miri.
//! Never: fails because no nightly can be had; that is a skipped stage. Runs the exhaustive arithmetic tests: that code
//! is safe, and miri is a thousand times slower than the machine.

use super::Outcome;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::tools::{self, NIGHTLY, root, target_dir};
use anyhow::Result;
use std::time::Duration;

pub fn all() -> Result<Outcome> {
    if let Err(reason) = tools::ensure_miri() {
        return Ok(Outcome::Skipped(format!("{reason:#}")));
    }
    let shared = "--package oxccl-shared --lib --no-fail-fast -- abi:: sync:: fifo:: proto::";
    let blocks = "--package oxccl-device --test many_threads --no-fail-fast -- tiny::";
    let (mut success, mut tally) = (true, Tally::default());
    for tests in [shared, blocks] {
        let miri = Cmd::cargo()
            .arg(format!("+{NIGHTLY}"))
            .args(&format!("miri test --locked {tests}"))
            .env("CARGO_TARGET_DIR", target_dir().join("miri").to_string_lossy())
            .deadline(Duration::from_secs(1200));
        let output = miri.run(&root())?;
        success &= output.success;
        tally += Tally::of_cargo_test(&output.text);
    }
    Ok(Outcome::of(success, tally))
}
