//! What is in the packages, whatever their kind.

use super::programs::{LIBRARY, PLUGIN, Programs, TOOL};
use super::tree::SONAME;
use super::{archive, bundle, elf, notices};
use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;

/// The version of the crates, which is that of the packages.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// It says the version of NCCL.
const HEADER: &str = "host/capi/include/nccl.h";

/// What every package has in it.
pub struct Parts {
    pub library: Vec<u8>,
    pub plugin: Vec<u8>,
    pub tool: Vec<u8>,
    pub bundle: Vec<u8>,
    pub header: String,
    /// The version of NCCL whose interface it is.
    pub nccl: String,
    /// Of the crates in library, plugin and tool.
    pub notices: String,
    /// What was packed, in words.
    pub facts: String,
    /// The newest glibc that library, plugin or tool ask for.
    pub glibc: elf::Version,
    /// Of every file, in seconds since 1970.
    pub time: u64,
}

impl Parts {
    /// Reads and checks all of it.
    pub fn gather(programs: Programs, bundle: &Path) -> Result<Parts> {
        let Programs { library, plugin, tool } = programs;
        let bytes = fs::read(bundle).with_context(|| format!("reading {}", bundle.display()))?;
        let kernels = bundle::facts(&bytes).with_context(|| bundle.display().to_string())?;
        let of_library = elf::facts(&library).context(LIBRARY)?;
        let of_plugin = elf::facts(&plugin).context(PLUGIN)?;
        let of_tool = elf::facts(&tool).context(TOOL)?;
        let soname = of_library.soname.unwrap_or_default();
        ensure!(soname == SONAME, "{LIBRARY} has another soname than {SONAME}: '{soname}'");
        let header = fs::read_to_string(root().join(HEADER)).context(HEADER)?;
        let nccl = nccl_version(&header)?;
        let rustc =
            Cmd::new("rustc").arg("--version").probe(&root()).context("rustc does not say its version")?;
        let facts = format!(
            "oxccl {VERSION}\nNCCL's interface {nccl}\ncompiler {}\nlibrary's build id {}\nplugin's build id {}\ntool's build id {}\n{kernels}\n",
            rustc.trim(),
            of_library.build_id,
            of_plugin.build_id,
            of_tool.build_id,
        );
        Ok(Parts {
            glibc: of_library.glibc.max(of_plugin.glibc).max(of_tool.glibc),
            library,
            plugin,
            tool,
            bundle: bytes,
            header,
            nccl,
            notices: notices::third_party()?,
            facts,
            time: archive::time()?,
        })
    }
}

/// As in `2.32.3`.
fn nccl_version(header: &str) -> Result<String> {
    let number = |name: &str| {
        let line = header.lines().find_map(|line| line.strip_prefix("#define NCCL_")?.strip_prefix(name));
        line.map(str::trim).with_context(|| format!("{HEADER} has no NCCL_{name}"))
    };
    Ok(format!("{}.{}.{}", number("MAJOR ")?, number("MINOR ")?, number("PATCH ")?))
}

/// What every package brings for people: names and contents.
pub fn documents() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let files = [
        ("packages.md", "docs/packages.md"),
        ("env-vars.md", "docs/env-vars.md"),
        ("changelog.md", "docs/changelog.md"),
        ("LICENSE-APACHE", "LICENSE-APACHE"),
        ("LICENSE-MIT", "LICENSE-MIT"),
    ];
    let read = |(name, path): (&'static str, &str)| {
        Ok((name, fs::read(root().join(path)).context(path.to_owned())?))
    };
    files.into_iter().map(read).collect()
}
