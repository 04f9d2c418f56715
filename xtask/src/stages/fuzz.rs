//! Layer: xtask / stages.
//! Takes: `tests/fuzz/fuzz_targets/*.rs` and the seeds in `tests/fuzz/seeds/<target>/`.
//! Gives: each target fuzzed for a while by libFuzzer through cargo-fuzz; where that cannot be built, each target run
//! on its seeds and on random bytes instead, which it says.
//! Never: writes into the seeds: what the fuzzer learns lies in the ignored `tests/fuzz/corpus/`.

use super::Outcome;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::tools::{self, NIGHTLY, root, target_dir};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::Duration;

/// Of each target in `cargo xtask test`.
const SHORT: Duration = Duration::from_secs(20);
const FUZZ_DIR: &str = "tests/fuzz";

pub fn short() -> Result<Outcome> {
    run_targets(None, SHORT)
}

/// Runs `target`, or each target, for `seconds`.
pub fn run_targets(target: Option<&str>, time: Duration) -> Result<Outcome> {
    let mut targets = targets_in(&root().join(FUZZ_DIR).join("fuzz_targets"))?;
    if let Some(name) = target {
        if !targets.iter().any(|known| known == name) {
            bail!("no fuzz target is called '{name}'; there are: {}", targets.join(", "));
        }
        targets.retain(|known| known == name);
    }
    let tool = tools::ensure_cxx().and_then(|()| tools::ensure_cargo_fuzz());
    match tool {
        Ok(cargo_fuzz) => with_libfuzzer(&cargo_fuzz, &targets, time),
        Err(reason) => {
            eprintln!("no libFuzzer here ({reason:#}); seeds and random bytes instead");
            without_libfuzzer(&targets, time)
        }
    }
}

fn with_libfuzzer(cargo_fuzz: &Path, targets: &[String], time: Duration) -> Result<Outcome> {
    // One build for all, so that its time is nobody's deadline.
    let build = fuzz_command(cargo_fuzz, "build").deadline(Duration::from_secs(900));
    if !build.run(&root())?.success {
        bail!("the fuzz targets do not build");
    }
    let mut tally = Tally::default();
    for target in targets {
        let corpus = format!("{FUZZ_DIR}/corpus/{target}");
        std::fs::create_dir_all(root().join(&corpus)).with_context(|| format!("cannot make {corpus}"))?;
        let mut run = fuzz_command(cargo_fuzz, "run").arg(target).arg(corpus);
        let seeds = format!("{FUZZ_DIR}/seeds/{target}");
        if root().join(&seeds).is_dir() {
            run = run.arg(seeds);
        }
        let flags = format!("-- -max_total_time={} -timeout=60 -rss_limit_mb=2048", time.as_secs());
        let run = run
            .args(&flags)
            .args("-print_final_stats=1 -verbosity=0")
            .deadline(time + Duration::from_secs(300));
        tally += if run.run(&root())?.success { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    }
    Ok(Outcome::of(tally.failed == 0, tally))
}

fn fuzz_command(cargo_fuzz: &Path, verb: &str) -> Cmd {
    let command = Cmd::new(cargo_fuzz.to_string_lossy())
        .args("fuzz")
        .arg(verb)
        .args("--fuzz-dir")
        .arg(FUZZ_DIR)
        .arg("--target-dir")
        .arg(target_dir().join("fuzz").to_string_lossy());
    if tools::has_nightly() {
        return command.env("RUSTUP_TOOLCHAIN", NIGHTLY);
    }
    // The sanitizer and the coverage passes are in a stable compiler too, behind this switch.
    command.env("RUSTC_BOOTSTRAP", "1")
}

fn without_libfuzzer(targets: &[String], time: Duration) -> Result<Outcome> {
    let mut tally = Tally::default();
    for target in targets {
        let replay = Cmd::cargo()
            .args("run --release --no-default-features --manifest-path tests/fuzz/Cargo.toml --bin replay --target-dir")
            .arg(target_dir().join("fuzz").to_string_lossy())
            .arg("--")
            .arg(target)
            .arg(format!("{FUZZ_DIR}/seeds/{target}"))
            .arg(time.as_secs().to_string())
            .deadline(time + Duration::from_secs(600));
        tally += if replay.run(&root())?.success { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    }
    Ok(Outcome::of(tally.failed == 0, tally))
}

fn targets_in(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}
