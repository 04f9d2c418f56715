//! Layer: xtask / stages.
//! Takes: the targets of `tests/fuzz/` and their seeds in `tests/fuzz/seeds/<target>/`.
//! Gives: each target fuzzed for a while by libFuzzer, several at a time on a machine with many cores; where that cannot be
//! built, each target run on its seeds and on random bytes instead, which it says.
//! Never: writes into the seeds: what the fuzzer learns lies in the ignored `tests/fuzz/corpus/`.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::tools::{self, root, target_dir};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::Duration;

/// Of each target in `cargo xtask test`.
const SHORT: Duration = Duration::from_secs(10);
const FUZZ_DIR: &str = "tests/fuzz";

/// cargo-fuzz's flags: coverage counters for libFuzzer, comparisons and stack depth for its guidance, AddressSanitizer.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-sanitizer-coverage-stack-depth \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0 --cfg fuzzing -Clink-dead-code -Zsanitizer=address \
    -Cdebug-assertions -Ccodegen-units=1";

pub fn short() -> Result<Outcome> {
    run_targets(None, SHORT)
}

/// Runs `target`, or each target, for `time`.
pub fn run_targets(target: Option<&str>, time: Duration) -> Result<Outcome> {
    let fuzzer = match tools::ensure_cxx() {
        Ok(()) => Fuzzer::with_libfuzzer()?,
        Err(reason) => {
            beside::note(format_args!("no libFuzzer here ({reason:#}); seeds and random bytes instead"));
            Fuzzer::without_libfuzzer()?
        }
    };
    let mut targets = fuzzer.targets()?;
    if let Some(name) = target {
        if !targets.iter().any(|known| known == name) {
            bail!("no fuzz target is called '{name}'; there are: {}", targets.join(", "));
        }
        targets.retain(|known| known == name);
    }
    // Half of the cores: `cargo xtask test` runs other stages beside this one.
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    let ended = beside::side_by_side(targets, cores / 2, |target| fuzzer.run(&target, time));
    let mut tally = Tally::default();
    for success in ended {
        tally += if success? { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    }
    Ok(Outcome::of(tally.failed == 0, tally))
}

/// A program that runs any target.
struct Fuzzer {
    program: PathBuf,
    is_libfuzzer: bool,
}

impl Fuzzer {
    fn with_libfuzzer() -> Result<Fuzzer> {
        let triple = host_triple()?;
        // Named, or the flags would hold for build scripts too.
        let target = format!("--target {triple} --bin libfuzzer");
        // The sanitizer and the coverage passes are in a stable compiler too, behind this switch.
        build(Cmd::cargo().env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", RUSTFLAGS), &target)?;
        let program = target_dir().join("fuzz").join(triple).join("release/libfuzzer");
        Ok(Fuzzer { program, is_libfuzzer: true })
    }

    fn without_libfuzzer() -> Result<Fuzzer> {
        build(Cmd::cargo(), "--no-default-features --bin replay")?;
        Ok(Fuzzer { program: target_dir().join("fuzz/release/replay"), is_libfuzzer: false })
    }

    fn command(&self, target: &str) -> Cmd {
        let command = Cmd::new(self.program.to_string_lossy());
        if self.is_libfuzzer { command.env("OXCCL_FUZZ_TARGET", target) } else { command.arg(target) }
    }

    /// Their names.
    fn targets(&self) -> Result<Vec<String>> {
        let list = self.command("list").probe(&root()).context("the fuzzer does not list its targets")?;
        Ok(list.split_whitespace().map(String::from).collect())
    }

    fn run(&self, target: &str, time: Duration) -> Result<bool> {
        let seeds = format!("{FUZZ_DIR}/seeds/{target}");
        let mut command = self.command(target).deadline(time + Duration::from_secs(300));
        if self.is_libfuzzer {
            let made = ["corpus", "artifacts"].map(|folder| format!("{FUZZ_DIR}/{folder}/{target}"));
            for folder in &made {
                std::fs::create_dir_all(root().join(folder))
                    .with_context(|| format!("cannot make {folder}"))?;
            }
            let [corpus, artifacts] = made;
            command = command
                .env("ASAN_OPTIONS", "detect_odr_violation=0")
                .arg(format!("-artifact_prefix={artifacts}/"))
                .args(&format!("-max_total_time={} -timeout=60 -rss_limit_mb=2048", time.as_secs()))
                .args("-print_final_stats=1 -verbosity=0")
                .arg(corpus);
            if root().join(&seeds).is_dir() {
                command = command.arg(seeds);
            }
        } else {
            command = command.arg(seeds).arg(time.as_secs().to_string());
        }
        Ok(command.run(&root())?.success)
    }
}

/// Builds a program of the fuzz crate, in a target directory of its own because of the flags.
fn build(cargo: Cmd, what: &str) -> Result<()> {
    let build = cargo
        .args("build --release --locked --manifest-path")
        .arg(format!("{FUZZ_DIR}/Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir().join("fuzz").to_string_lossy())
        .args(what)
        .deadline(Duration::from_secs(2400));
    if !build.run(&root())?.success {
        bail!("the fuzz targets do not build");
    }
    Ok(())
}

fn host_triple() -> Result<String> {
    let version = Cmd::new("rustc").arg("-vV").probe(&root()).context("`rustc -vV` fails")?;
    let line = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("`rustc -vV` names no host")?.to_string())
}
