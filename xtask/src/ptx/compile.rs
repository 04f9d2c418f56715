//! Layer: xtask / ptx.
//! Takes: a crate with kernels and a GPU generation.
//! Gives: the text of one self-contained PTX file.
//! Never: links: the "linker" is `true`, and the PTX is what the compiler would have handed to it.

use super::compiler::Compiler;
use crate::cmd::Cmd;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::Duration;

/// A crate to build kernels from.
#[derive(Clone, Debug)]
pub struct Source {
    /// From the repository's root.
    manifest: PathBuf,
    package: String,
    /// Of a generation.
    features: fn(u32) -> Option<String>,
}

/// Features that name the instructions of a generation, which later ones have too: the first generation that has them.
const GENERATIONS: &[(u32, &str)] = &[(80, "sm80"), (90, "sm90")];

fn device_features(sm: u32) -> Option<String> {
    let known = GENERATIONS.iter().filter(|(first, _)| sm >= *first).map(|(_, feature)| *feature);
    Some(std::iter::once("ptx").chain(known).collect::<Vec<_>>().join(","))
}

impl Source {
    /// The library's own kernels.
    pub fn device() -> Source {
        Source { manifest: "Cargo.toml".into(), package: "oxccl-device".into(), features: device_features }
    }

    /// A crate outside the workspace, by its folder: the probes of the golden tests.
    pub fn folder(folder: &str) -> Result<Source> {
        let manifest = PathBuf::from(folder).join("Cargo.toml");
        let path = root().join(&manifest);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let package = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        match package {
            Some(package) => Ok(Source { manifest, package: package.into(), features: |_| None }),
            None => bail!("{} names no package", path.display()),
        }
    }
}

/// Compiles `source` for the GPU generation `sm` (90 for 9.0).
pub fn compile(compiler: &Compiler, source: &Source, sm: u32) -> Result<String> {
    // A folder for each generation: the file's name does not tell for which it was built, so cargo would take one for
    // the other. All sources share it, and `core` with it.
    let target = target_dir().join(format!("ptx-build/sm_{sm}"));
    let output =
        command(compiler, source, sm).env("CARGO_TARGET_DIR", target.to_string_lossy()).run(&root())?;
    if !output.success {
        bail!("{} does not compile for sm_{sm} with {}", source.package, compiler.version);
    }
    let file = format!("{}.s", source.package.replace('-', "_"));
    let path = target.join("nvptx64-nvidia-cuda/release/deps").join(file);
    std::fs::read_to_string(&path).with_context(|| format!("no PTX at {}", path.display()))
}

/// What `core` and every dependency are built for too: each function carries its own target, and below sm_70 an ordered load
/// stops the compiler.
fn target_flags(sm: u32) -> String {
    // The oldest version of the language that an old generation knows lacks instructions that the kernels spell out. 7.8 is
    // the first that knows sm_90, and is taken by every driver since CUDA 11.8; later generations have it or a later one.
    let language = if sm < 90 { " -Ctarget-feature=+ptx78" } else { "" };
    format!("-Ctarget-cpu=sm_{sm}{language}")
}

fn command(compiler: &Compiler, source: &Source, sm: u32) -> Cmd {
    let mut cargo = compiler
        .cargo()
        .args("rustc --release --lib --crate-type cdylib --target nvptx64-nvidia-cuda -Zbuild-std=core")
        .arg("--manifest-path")
        .arg(source.manifest.to_string_lossy())
        .args("--package")
        .arg(&source.package);
    if let Some(features) = (source.features)(sm) {
        cargo = cargo.args("--no-default-features --features").arg(features);
    }
    cargo
        .args("-- --emit=asm -C linker=/bin/true")
        .env("CARGO_TARGET_NVPTX64_NVIDIA_CUDA_RUSTFLAGS", target_flags(sm))
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
        // The splitter does not carry debug sections.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .deadline(Duration::from_secs(900))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_gets_the_instructions_of_those_before() {
        let features = |sm| device_features(sm).unwrap();
        assert_eq!([features(70), features(80), features(89)], ["ptx", "ptx,sm80", "ptx,sm80"]);
        assert_eq!([features(90), features(100)], ["ptx,sm80,sm90"; 2]);
    }
}
