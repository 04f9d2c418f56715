//! Layer: xtask / stages.
//! Takes: how long, and a seed.
//! Gives: `oxccl-soak` of the tests, built for speed and run: random collectives over networks that delay and fail.
//! Never: is part of `cargo xtask test`, which runs a few seconds of the same as one of its tests.

use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::Result;
use std::time::Duration;

/// For the build, and for the soak to notice by itself that it hangs.
const BESIDE: Duration = Duration::from_secs(1800);

/// Whether every result was right and nothing grew.
pub fn run(time: Duration, seed: Option<u64>) -> Result<bool> {
    let soak = Cmd::cargo()
        .args("run --release --locked -p oxccl-tests --bin oxccl-soak --")
        .arg(time.as_secs().to_string())
        .args(&seed.map(|seed| seed.to_string()).unwrap_or_default())
        .deadline(time + BESIDE);
    Ok(soak.run(&root())?.success)
}
