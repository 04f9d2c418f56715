//! Layer: xtask / stages.
//! Takes: the kernels' sources and the probes of `tests/amdgcn/`.
//! Gives: kernels of each walk and protocol built for every processor and checked; the tests that read assembly.
//! Never: fails because no compiler can be had, which is a skipped stage.

use super::Outcome;
use crate::amdgcn::{Options, PROCESSORS, build};
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::ptx::compiler::Compiler;
use crate::tools::{has_nightly, root, target_dir};
use anyhow::Result;
use std::time::Duration;

/// A kernel of each walk, of both protocols, of one type: the others differ in arithmetic, which is the CPU's. All of them take many minutes.
const ONLY: &str = "all_reduce_ring_ll_f32,all_reduce_tree_simple_f32,all_reduce_twoshot_ll_f32,all_reduce_twolevel_simple_f32,all_reduce_collnetchain_simple_f32,reduce_scatter_collnetchain_simple_f32,broadcast_oneshot_ll,send_recv_simple";

pub fn all() -> Result<Outcome> {
    if !has_nightly() {
        return Ok(Outcome::Skipped("no nightly of rustup, which carries the compiler for AMD GPUs".into()));
    }
    if let Err(reason) = Compiler::find() {
        return Ok(Outcome::Skipped(format!("{reason:#}")));
    }
    let out = target_dir().join("amdgcn-ci");
    let options = |source: Option<&str>, folder: &str| Options {
        cpu: PROCESSORS.map(String::from).to_vec(),
        out: Some(out.join(folder)),
        only: if source.is_none() { ONLY.into() } else { String::new() },
        source: source.map(String::from),
    };
    let mut tally = Tally::default();
    for options in [options(None, "kernels"), options(Some("tests/amdgcn"), "probes")] {
        tally += if build(&options)? { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    }
    let tests = Cmd::cargo()
        // The whole workspace is named so that what the stage `tests` built is used again.
        .args("test --workspace --locked --test pure --no-fail-fast")
        .args("-- --ignored needs_amdgcn")
        .env("OXCCL_AMDGCN", out.to_string_lossy())
        .deadline(Duration::from_secs(1800));
    let output = tests.run(&root())?;
    tally += Tally::of_cargo_test(&output.text);
    Ok(Outcome::of(output.success, tally))
}
