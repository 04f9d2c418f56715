//! Layer: xtask.
//! Takes: the machine as it is.
//! Gives: paths of the tools a stage needs, installing them first where that can be done without asking.
//! Never: touches what it did not make, except through apt-get as root and rustup components.

use crate::cmd::Cmd;
use anyhow::{Result, anyhow, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The nightly that miri runs on.
pub const NIGHTLY: &str = "nightly";

/// The repository's root: the parent of this package.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}

/// Where cargo builds; stages with other flags use subdirectories, so that they do not evict each other's builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Whether `cargo nextest` can be used.
pub fn has_nextest() -> bool {
    Cmd::cargo().args("nextest --version").probe(&root()).is_some()
}

/// Whether a nightly toolchain is installed.
pub fn has_nightly() -> bool {
    Cmd::new("rustc").arg(format!("+{NIGHTLY}")).arg("--version").probe(&root()).is_some()
}

/// Makes sure that `cargo +nightly miri` works. The error says what to type.
pub fn ensure_miri() -> Result<()> {
    let works = || {
        let toolchain = format!("+{NIGHTLY}");
        let miri = Cmd::cargo().arg(&*toolchain).args("miri --version").probe(&root()).is_some();
        let sysroot = Cmd::new("rustc").arg(toolchain).args("--print sysroot").probe(&root());
        let source = |dir: String| Path::new(dir.trim()).join("lib/rustlib/src/rust/library/core").is_dir();
        miri && sysroot.is_some_and(source)
    };
    if works() {
        return Ok(());
    }
    let install = format!("rustup toolchain install {NIGHTLY} --profile minimal --component miri,rust-src");
    // An installed nightly keeps its version; only what is missing is added.
    let attempt = if has_nightly() {
        Cmd::new("rustup").args(&format!("component add --toolchain {NIGHTLY} miri rust-src"))
    } else {
        Cmd::new("rustup").args(install.trim_start_matches("rustup "))
    };
    let installed =
        attempt.deadline(Duration::from_secs(240)).run(&root()).is_ok_and(|output| output.success);
    if installed && works() {
        return Ok(());
    }
    bail!("no nightly with miri and rust-src; to get it: {install}")
}

/// Makes sure that a C++ compiler, which libFuzzer's runtime is built with, is there.
pub fn ensure_cxx() -> Result<()> {
    if Cmd::new("c++").arg("--version").probe(&root()).is_some() {
        return Ok(());
    }
    apt_install("g++")
}

/// Makes sure that `ip`, with which tests make several hosts out of one, is there.
pub fn ensure_iproute2() -> Result<()> {
    if Cmd::new("ip").arg("-V").probe(&root()).is_some() {
        return Ok(());
    }
    apt_install("iproute2")
}

/// Installs Debian packages, named with blanks between them, if that needs no password.
pub fn apt_install(package: &str) -> Result<()> {
    let by_hand = || anyhow!("`{package}` is missing; to get it: sudo apt-get install --yes {package}");
    if !rustix::process::geteuid().is_root() {
        return Err(by_hand());
    }
    let apt =
        |line: &str| Cmd::new("apt-get").args(line).env("DEBIAN_FRONTEND", "noninteractive").run(&root());
    let install = format!("install --yes --no-install-recommends {package}");
    // A fresh image has no package lists; a warm one need not fetch them.
    if apt(&install)?.success || (apt("update")?.success && apt(&install)?.success) {
        return Ok(());
    }
    Err(by_hand())
}
