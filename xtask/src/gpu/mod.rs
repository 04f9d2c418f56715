//! Layer: xtask / gpu, `cargo xtask gpu-pack`.
//! Takes: the kernels, the GPU tests, the measuring tool and the examples.
//! Gives: a folder that a machine with GPUs runs without a toolchain: programs, kernels and `run.sh`.
//! Never: needs a GPU itself.

use crate::cmd::Cmd;
use crate::ptx;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What runs there.
const RUN: &str = include_str!("run.sh");

/// `cargo xtask gpu-pack`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// The folder; files of the same names are replaced.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// GPU generations, as compute capability without the dot.
    #[arg(long, value_delimiter = ',', default_value = "90")]
    pub sm: Vec<u32>,
}

/// Builds everything and copies it. Returns whether no check of the kernels complained.
pub fn pack(options: &Options) -> Result<bool> {
    let dir = root().join(&options.dir);
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    let kernels = target_dir().join("gpu-pack");
    let ptx = ptx::Options {
        sm: options.sm.clone(),
        out: Some(kernels.clone()),
        only: String::new(),
        assemble: Vec::new(),
        fetch: true,
        source: None,
        bulk: false,
    };
    let good = ptx::build(&ptx)?;
    copy(&kernels.join("oxccl.oxptx"), &dir)?;
    let programs: [&[&str]; 3] = [
        &["--release", "-p", "oxccl-benches", "--bin", "oxccl"],
        &[
            "--release",
            "-p",
            "oxccl",
            "--features",
            "internals",
            "--example",
            "device_all_reduce",
            "--example",
            "cuda_check",
        ],
        &["-p", "oxccl-tests", "--test", "gpu_conformance"],
    ];
    for arguments in programs {
        for (name, program) in built(arguments)? {
            copy_stripped(&program, &dir.join(name))?;
        }
    }
    let run = dir.join("run.sh");
    fs::write(&run, RUN).with_context(|| format!("writing {}", run.display()))?;
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755))?;
    eprintln!("gpu-pack: copy {} to a machine with GPUs and type ./run.sh there", dir.display());
    Ok(good)
}

/// Builds targets without running them; their names and programs.
fn built(arguments: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let verb = if arguments.contains(&"--test") { "test --no-run" } else { "build" };
    let cargo = arguments.iter().fold(Cmd::cargo().args(verb), |cargo, argument| cargo.arg(*argument));
    let cargo = cargo.args("--locked --message-format json-render-diagnostics").quiet();
    eprintln!("+ {cargo}");
    let output = cargo.deadline(Duration::from_secs(1800)).run(&root())?;
    if !output.success {
        bail!("a build failed:\n{}", output.text);
    }
    let programs: Vec<_> = output.text.lines().filter_map(program).collect();
    if programs.is_empty() {
        bail!("cargo names no program among what it built with {arguments:?}");
    }
    Ok(programs)
}

/// The program that one of cargo's messages names, if it was asked for.
fn program(line: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let path = message.get("executable")?.as_str()?;
    let target = message.get("target")?;
    let kind = target.get("kind")?.get(0)?.as_str()?;
    let is_test = message.get("profile")?.get("test")?.as_bool()?;
    let name = target.get("name")?.as_str()?;
    // A test of the whole also builds binaries, of which those on GPUs start one.
    let is_tool = ["oxccl", "oxccl-gpu-rank"].contains(&name);
    let is_wanted = if is_test { kind == "test" } else { kind == "example" || is_tool };
    is_wanted.then(|| (name.to_owned(), PathBuf::from(path)))
}

/// Copies a file into a folder, which may be its own: copying a file over itself would empty it.
fn copy(from: &Path, dir: &Path) -> Result<()> {
    let to = dir.join(from.file_name().context("a file without a name")?);
    let is_there = to.canonicalize().is_ok_and(|to| from.canonicalize().is_ok_and(|from| from == to));
    if !is_there {
        fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

/// Without debug information, which is ten times the rest; whole where there is no `strip`.
fn copy_stripped(from: &Path, to: &Path) -> Result<()> {
    let [from_text, to_text] = [from, to].map(|path| path.to_string_lossy().into_owned());
    let strip = Cmd::new("strip").arg("-o").arg(to_text).arg(from_text);
    if strip.probe(&root()).is_none() {
        fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_cargos_messages() {
        let line = |kind: &str, name: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":"/t/{name}"}}"#
            )
        };
        let found = |kind, name, test| program(&line(kind, name, test)).map(|(name, _)| name);
        assert_eq!(found("test", "gpu_conformance", true).as_deref(), Some("gpu_conformance"));
        assert_eq!(found("example", "cuda_check", false).as_deref(), Some("cuda_check"));
        assert_eq!(found("bin", "oxccl", false).as_deref(), Some("oxccl"));
        assert_eq!(found("bin", "oxccl-gpu-rank", false).as_deref(), Some("oxccl-gpu-rank"));
        assert_eq!(found("bin", "oxccl-rank", false), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn a_file_that_lies_there_already_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("kernels"), folder.path().join("other"));
        fs::create_dir(&other).unwrap();
        fs::write(&file, "PTX").unwrap();
        copy(&file, &other.join("..")).unwrap();
        copy(&file, &other).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"PTX");
        assert_eq!(fs::read(other.join("kernels")).unwrap(), b"PTX");
    }

    /// The parts that `run.sh` does by default are all that it knows.
    #[test]
    fn the_script_runs_every_part_it_has() {
        let line = |start: &str| RUN.lines().find_map(|line| line.trim().strip_prefix(start));
        let known = line("tests | ").and_then(|rest| rest.split(')').next()).expect("a case");
        let mut known: Vec<&str> = known.split(" | ").chain(["tests"]).collect();
        let by_default = line("[ $# -gt 0 ] || set -- ").expect("a default");
        let mut by_default: Vec<&str> = by_default.split(' ').collect();
        known.sort_unstable();
        by_default.sort_unstable();
        assert_eq!(known, by_default);
        for part in known {
            assert!(RUN.contains(&format!("{part}() {{")), "{part}");
        }
    }
}
