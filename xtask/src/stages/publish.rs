//! Layer: xtask / stages.
//! Takes: the crates that are meant for a registry, a toolchain as old as they say, the registry's index.
//! Gives: `cargo publish --dry-run` of all of them, and what it packed, checked outside the repository by that toolchain: neither a file
//! that is left out nor a newer language passes.
//! Never: uploads anything; fails because toolchain or index cannot be had, which is a skipped stage.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::ptx;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// From the leaves up.
const CRATES: [&str; 4] = ["oxccl-shared", "oxccl-device", "oxccl", "oxccl-nccl"];
const DEADLINE: Duration = Duration::from_secs(1800);

pub fn all() -> Result<Outcome> {
    let work = target_dir().join("publish-test");
    let _ = fs::remove_dir_all(work.join("crates"));
    fs::create_dir_all(work.join("crates"))?;
    // Building is left to the old toolchain. Changes that are not committed are a person's at work.
    let publish = Cmd::cargo()
        .args("publish --workspace --dry-run --no-verify --locked --allow-dirty")
        .env("CARGO_TARGET_DIR", work.to_string_lossy());
    let published = publish.run(&root())?;
    if !published.success && published.text.contains("download of config.json failed") {
        return Ok(Outcome::Skipped("the registry's index cannot be reached".into()));
    }
    let mut tally = if published.success { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    if !published.success {
        return Ok(Outcome::Failed(tally));
    }
    // A dry run leaves its packages in a place that cargo has for itself.
    let named = CRATES.map(|name| format!("-p {name}")).join(" ");
    let pack = Cmd::cargo()
        .args("package --no-verify --locked --allow-dirty --quiet")
        .args(&named)
        .env("CARGO_TARGET_DIR", work.to_string_lossy());
    ensure!(pack.run(&root())?.success, "what could be published cannot be packed");
    unpack(&work)?;
    let oldest = oldest()?;
    if let Some(reason) = missing(&oldest) {
        beside::note(format_args!("publish: what was packed is not checked: {reason}"));
        tally.skipped += 1;
        return Ok(Outcome::Passed(tally));
    }
    // The feature that no other stage builds, with what its build script makes of a bundle.
    let bundle = work.join("none.oxptx");
    fs::write(&bundle, ptx::without_kernels()?)?;
    let check = Cmd::cargo()
        .arg(format!("+{oldest}"))
        .args("check --workspace --features oxccl/embed-kernels --manifest-path")
        .arg(work.join("crates/Cargo.toml").to_string_lossy())
        .env("OXCCL_EMBED_KERNELS", bundle.to_string_lossy())
        .env("CARGO_TARGET_DIR", work.join("check").to_string_lossy())
        // Strangers see no warnings of ours, and older compilers have others.
        .env("RUSTFLAGS", "--cap-lints=allow")
        .deadline(DEADLINE);
    tally += if check.run(&root())?.success { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    Ok(Outcome::of(tally.failed == 0, tally))
}

/// The version that the workspace states, as rustup names its first release.
fn oldest() -> Result<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    Ok(format!("{}.0", line.context("Cargo.toml states no rust-version")?.trim_matches('"')))
}

/// Why the toolchain is not there and cannot be had.
fn missing(version: &str) -> Option<String> {
    let is_there = || Cmd::new("rustc").arg(format!("+{version}")).arg("--version").probe(&root()).is_some();
    let install = format!("toolchain install {version} --profile minimal --no-self-update");
    let installed = || Cmd::new("rustup").args(&install).deadline(Duration::from_secs(240)).run(&root());
    let can = is_there() || (installed().is_ok_and(|output| output.success) && is_there());
    if can { None } else { Some(format!("to get the toolchain: rustup {install}")) }
}

/// The crates' files as a workspace that takes each from there and everything else from the registry, in the versions of our lock file.
fn unpack(work: &Path) -> Result<()> {
    let folder = work.join("crates");
    let (mut members, mut patches) = (String::new(), String::new());
    for name in CRATES {
        let package = format!("{name}-{VERSION}");
        let archive = work.join("package").join(format!("{package}.crate"));
        let tar = Cmd::new("tar")
            // With new times: cargo takes a crate with the old ones for the one that it has built.
            .arg("-xzmf")
            .arg(archive.to_string_lossy())
            .arg("-C")
            .arg(folder.to_string_lossy());
        let output = tar.quiet().run(&root())?;
        ensure!(output.success, "{}: {}", archive.display(), output.text);
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            ensure!(folder.join(&package).join(file).is_file(), "{package} has no {file}");
        }
        write!(members, "\"{package}\", ")?;
        writeln!(patches, "{name} = {{ path = \"{package}\" }}")?;
    }
    let manifest =
        format!("[workspace]\nresolver = \"3\"\nmembers = [{members}]\n\n[patch.crates-io]\n{patches}");
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_oldest_toolchain_is_the_workspaces() {
        let oldest = super::oldest().unwrap();
        let numbers: Vec<u32> = oldest.split('.').map(|number| number.parse().unwrap()).collect();
        assert!(numbers.len() == 3 && numbers[0] == 1 && numbers[1] >= 88, "{oldest}");
    }
}
