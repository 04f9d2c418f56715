//! The library, the plugin and the tool that are packed.

use crate::cmd::Cmd;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Cargo's names for them.
pub const LIBRARY: &str = "libnccl.so";
/// The plugin for NCCL's own library.
pub const PLUGIN: &str = "libnccl_net_oxccl.so";
pub const TOOL: &str = "oxccl";

/// Their contents, without debug information.
pub struct Programs {
    pub library: Vec<u8>,
    pub plugin: Vec<u8>,
    pub tool: Vec<u8>,
}

/// Built for strangers: apart from other builds, because these name neither this checkout nor this person's folders.
pub fn build() -> Result<Programs> {
    let folder = target_dir().join("package-build");
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"));
    let mut flags = vec![format!("--remap-path-prefix={}=/oxccl", root().display())];
    flags.extend(home.map(|home| format!("--remap-path-prefix={home}=/cargo")));
    for line in ["-p oxccl-nccl --lib", "-p oxccl-net-plugin --lib", "-p oxccl-benches --bin oxccl"] {
        let cargo = Cmd::cargo()
            .args("build --release --locked")
            .args(line)
            .env("CARGO_TARGET_DIR", folder.to_string_lossy())
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env("CARGO_INCREMENTAL", "0")
            .env("OXCCL_PACKAGED", "1")
            .deadline(Duration::from_secs(3600));
        if !cargo.run(&root())?.success {
            bail!("a build failed");
        }
    }
    take(&folder.join("release"))
}

/// Those of a folder.
pub fn take(folder: &Path) -> Result<Programs> {
    let [library, plugin, tool] = [LIBRARY, PLUGIN, TOOL].map(|file| stripped(&folder.join(file)));
    Ok(Programs { library: library?, plugin: plugin?, tool: tool? })
}

fn stripped(from: &Path) -> Result<Vec<u8>> {
    let to =
        target_dir().join("package-build/stripped").join(from.file_name().context("a file without a name")?);
    fs::create_dir_all(to.parent().expect("it lies in a folder"))?;
    let strip =
        Cmd::new("strip").args("--strip-unneeded -o").arg(to.to_string_lossy()).arg(from.to_string_lossy());
    let output = strip.quiet().run(&root())?;
    if !output.success {
        bail!("{} cannot be stripped: {}", from.display(), output.text);
    }
    fs::read(&to).with_context(|| format!("reading {}", to.display()))
}
