//! Layer: xtask / ptx.
//! Takes: what was built.
//! Gives: `manifest.json`, for people and for tests: which compiler made which file from which sources, and what each
//! entry uses.
//! Never: is read at run time; the bundle carries its own index.

use super::ptxas::hex;
use super::usage::Usage;
use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Context, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// The whole build.
#[derive(Debug, Serialize)]
pub struct Manifest {
    pub format: u32,
    #[serde(flatten)]
    pub origin: Origin,
    pub targets: Vec<Target>,
}

/// Of what, by what.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// `rustc --version`.
    pub compiler: String,
    pub llvm: String,
    /// Absent where no assembler was at hand.
    pub ptxas: Option<String>,
    /// The commit checked out, with `-dirty` if files differ from it; `unknown` outside a repository.
    pub commit: String,
    /// Of the names and contents of every source file of the kernels.
    pub source_sha256: String,
    /// Of the layouts that kernels share with their host (`oxccl_shared::abi::ABI_DIGEST`).
    pub abi: String,
}

#[derive(Debug, Serialize)]
pub struct Target {
    /// 90 for compute capability 9.0.
    pub sm: u32,
    pub modules: Vec<Module>,
}

#[derive(Debug, Serialize)]
pub struct Module {
    pub name: String,
    pub ptx: File,
    pub cubin: Option<File>,
    pub entries: Vec<Entry>,
}

#[derive(Debug, Serialize)]
pub struct File {
    /// From the manifest's folder.
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

impl File {
    pub fn of(path: String, contents: &[u8]) -> File {
        File { path, bytes: contents.len() as u64, sha256: hex(&Sha256::digest(contents)) }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Entry {
    Assembled(Usage),
    /// Where no assembler was at hand.
    Named {
        name: String,
        max_threads: u32,
    },
}

/// The sources of kernels.
const SOURCES: &str = "Cargo.lock Cargo.toml shared device";

/// The commit, and a hash of the sources as they lie there.
pub fn sources() -> Result<(String, String)> {
    let git = |line: &str| Cmd::new("git").args(line).probe(&root());
    let Some(list) = git(&format!("ls-files --cached --others --exclude-standard -- {SOURCES}")) else {
        return Ok(("unknown".into(), "unknown".into()));
    };
    let mut names: Vec<&str> = list.lines().filter(|name| root().join(name).is_file()).collect();
    names.sort_unstable();
    names.dedup();
    let mut hash = Sha256::new();
    for name in names {
        let contents = std::fs::read(root().join(name)).with_context(|| format!("cannot read {name}"))?;
        hash.update(format!("{name} {}\n", contents.len()));
        hash.update(contents);
    }
    let commit = git("rev-parse HEAD").map_or("unknown".into(), |text| text.trim().to_string());
    let is_dirty =
        git(&format!("status --porcelain -- {SOURCES}")).is_some_and(|text| !text.trim().is_empty());
    Ok((if is_dirty { commit + "-dirty" } else { commit }, hex(&hash.finalize())))
}
