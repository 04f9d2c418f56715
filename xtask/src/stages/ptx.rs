//! Layer: xtask / stages.
//! Takes: the kernels' sources and the probes of `tests/ptx/`.
//! Gives: the kernels built for one generation and cut, those of some types assembled and checked; the tests that read PTX.
//! Never: needs a GPU; fails because no compiler can be had, which is a skipped stage. Touches the bundle that a person
//! has built.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::ptx;
use crate::tools::{root, target_dir};
use anyhow::Result;
use std::time::Duration;

/// The generation that is measured; the others differ in instructions that the golden tests look at.
const SM: u32 = 90;
/// One of each width, and of those that are converted to be summed. The assembler takes two seconds of a processor for a module; a build for use
/// (`cargo xtask build-ptx`) assembles and checks all types.
const TYPES: [&str; 5] = ["u8", "f8e4m3", "bf16", "f32", "f64"];

pub fn all() -> Result<Outcome> {
    if let Err(reason) = ptx::compiler::Compiler::find() {
        return Ok(Outcome::Skipped(format!("{reason:#}")));
    }
    let mut tally = Tally::default();
    let has_assembler = ptx::has_assembler();
    if !has_assembler {
        beside::note("no ptxas and none could be fetched: registers and spills are not checked");
        tally.skipped += 1;
    }
    let out = target_dir().join("ptx-ci");
    let options = ptx::Options {
        sm: vec![SM],
        out: Some(out.clone()),
        only: String::new(),
        assemble: TYPES.map(String::from).into(),
        fetch: has_assembler,
        source: None,
        bulk: false,
    };
    tally += if ptx::build(&options)? { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    let tests = Cmd::cargo()
        // The whole workspace is named so that what the stage `tests` built is used again.
        .args("test --workspace --locked --test pure --no-fail-fast")
        .args("-- --ignored needs_ptx")
        .env("OXCCL_PTX_PATH", out.join("oxccl.oxptx").to_string_lossy())
        .deadline(Duration::from_secs(1800));
    let output = tests.run(&root())?;
    tally += Tally::of_cargo_test(&output.text);
    Ok(Outcome::of(output.success, tally))
}
