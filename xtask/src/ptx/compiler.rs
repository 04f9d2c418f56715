//! Layer: xtask / ptx.
//! Takes: the toolchains of this machine.
//! Gives: a cargo command that can build `core` for a GPU's target, and what to write into the manifest about it.
//! Never: builds anything; picks a compiler older than the workspace allows.
//!
//! `core` for the target is built from source (`-Zbuild-std`), and the source must be that of the compiler in use. So a
//! candidate is a compiler whose sysroot holds `lib/rustlib/src`. A stable one works too: `RUSTC_BOOTSTRAP=1` opens the
//! features that the kernels need.

use crate::cmd::Cmd;
use crate::tools::{NIGHTLY, apt_install, root};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The oldest LLVM whose NVPTX back end orders loads and stores (`ld.acquire.sys`).
const LLVM_MIN: u32 = 21;

/// What the Debian security archive calls the compiler that it keeps new for browsers.
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "libstd-rust-web-dev", "rust-web-src"];

/// Where a compiler comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Origin {
    /// A toolchain of rustup, by name.
    Rustup(String),
    /// A program.
    Program(PathBuf),
}

/// A compiler that can build kernels.
#[derive(Clone, Debug)]
pub struct Compiler {
    origin: Origin,
    /// As `rustc --version` prints it.
    pub version: String,
    /// LLVM's version, as in `22.1.0`.
    pub llvm: String,
}

impl Compiler {
    /// The first that works, after installing one where that needs no password. The error says what to type.
    pub fn find() -> Result<Compiler> {
        if let Some(found) = installed() {
            return Ok(found);
        }
        for install in [install_rustup, install_debian] {
            if let (true, Some(found)) = (install(), installed()) {
                return Ok(found);
            }
        }
        bail!(
            "no compiler with its library source is here, which kernels need. Either\n    \
             rustup toolchain install {NIGHTLY} --profile minimal --component rust-src\nor, on Debian,\n    \
             sudo apt-get install --yes {}",
            DEBIAN_PACKAGES.join(" ")
        )
    }

    /// `cargo` set up to use this compiler.
    pub fn cargo(&self) -> Cmd {
        match &self.origin {
            Origin::Rustup(toolchain) => Cmd::cargo().arg(format!("+{toolchain}")),
            Origin::Program(rustc) => Cmd::cargo().env("RUSTC", rustc.to_string_lossy()),
        }
        // Harmless on a nightly, and one way to build is easier to reason about than two.
        .env("RUSTC_BOOTSTRAP", "1")
    }

    fn rustc(origin: &Origin) -> Cmd {
        match origin {
            Origin::Rustup(toolchain) => Cmd::new("rustc").arg(format!("+{toolchain}")),
            Origin::Program(rustc) => Cmd::new(rustc.to_string_lossy()),
        }
    }

    /// The compiler, if it has its source, knows the target's needs and is new enough.
    fn probe(origin: Origin) -> Option<Compiler> {
        let sysroot = Compiler::rustc(&origin).args("--print sysroot").probe(&root())?;
        if !Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src").is_dir() {
            return None;
        }
        let verbose = Compiler::rustc(&origin).args("-vV").probe(&root())?;
        let field = |key: &str| {
            let line = verbose.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim().to_string())
        };
        let llvm = field("LLVM version:")?;
        let major: u32 = llvm.split('.').next()?.parse().ok()?;
        let version = verbose.lines().next()?.to_string();
        (major >= LLVM_MIN).then_some(Compiler { origin, version, llvm })
    }
}

/// Nightly first: it is what rustup users add components to, and what the golden tests were written with.
fn installed() -> Option<Compiler> {
    let candidates = [
        Origin::Rustup(NIGHTLY.into()),
        Origin::Program("rustc".into()),
        Origin::Program("/usr/bin/rustc".into()),
        Origin::Rustup("stable".into()),
    ];
    candidates.into_iter().find_map(Compiler::probe)
}

/// Adds the source to a nightly, or installs a nightly. Returns whether anything was installed.
fn install_rustup() -> bool {
    if Cmd::new("rustup").arg("--version").probe(&root()).is_none() {
        return false;
    }
    let add = format!("component add rust-src --toolchain {NIGHTLY}");
    let install = format!("toolchain install {NIGHTLY} --profile minimal --component rust-src");
    let line = if crate::tools::has_nightly() { add } else { install };
    let rustup = Cmd::new("rustup").args(&line).deadline(Duration::from_secs(240));
    rustup.run(&root()).is_ok_and(|output| output.success)
}

fn install_debian() -> bool {
    Path::new("/etc/debian_version").exists() && apt_install(&DEBIAN_PACKAGES.join(" ")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_is_no_candidate() {
        assert!(Compiler::probe(Origin::Program("/nonexistent/rustc".into())).is_none());
    }

    #[test]
    fn the_command_names_the_compiler() {
        let compiler = Compiler {
            origin: Origin::Program("/usr/bin/rustc".into()),
            version: String::new(),
            llvm: String::new(),
        };
        assert_eq!(compiler.cargo().to_string(), "RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 cargo");
    }
}
