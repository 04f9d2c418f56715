//! Layer: xtask / ptx.
//! Takes: a crate with kernels and a GPU generation.
//! Gives: the text of one self-contained PTX file.
//! Never: links: the "linker" is `true`, and the PTX is what the compiler would have handed to it.

use super::compiler::Compiler;
use crate::cmd::Cmd;
use crate::kernels::{self, Abilities};
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, bail};
use oxccl_shared::abi::Protocol;
use std::path::PathBuf;
use std::time::Duration;

/// A crate to build kernels from.
#[derive(Clone, Debug)]
pub struct Source {
    /// From the repository's root.
    manifest: PathBuf,
    package: String,
    /// Whether it is the library's, which has features and takes a list of kernels.
    is_device: bool,
    /// Whether Simple's kernels get bulk copies where the generation has them.
    has_bulk_copies: bool,
}

/// Features that name the instructions of a generation, which later ones have too: the first generation that has them.
const GENERATIONS: &[(u32, &str)] = &[(80, "sm80"), (90, "sm90")];

/// The first generation with bulk copies, and the feature by which slots are moved so too.
const BULK_COPIES: (u32, &str) = (90, "bulk");

fn features(sm: u32, has_bulk_copies: bool) -> String {
    let known = GENERATIONS.iter().filter(|(first, _)| sm >= *first).map(|(_, feature)| *feature);
    let bulk = (has_bulk_copies && sm >= BULK_COPIES.0).then_some(BULK_COPIES.1);
    std::iter::once("entries").chain(known).chain(bulk).collect::<Vec<_>>().join(",")
}

impl Source {
    /// The library's own kernels.
    pub fn device() -> Source {
        Source {
            manifest: "Cargo.toml".into(),
            package: "oxccl-device".into(),
            is_device: true,
            has_bulk_copies: false,
        }
    }

    /// A crate outside the workspace, by its folder: the probes of the golden tests.
    pub fn folder(folder: &str) -> Result<Source> {
        let manifest = PathBuf::from(folder).join("Cargo.toml");
        let path = root().join(&manifest);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let package = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        match package {
            Some(package) => {
                Ok(Source { manifest, package: package.into(), is_device: false, has_bulk_copies: false })
            }
            None => bail!("{} names no package", path.display()),
        }
    }

    /// The same, with bulk copies in Simple's kernels or without.
    pub fn with_bulk_copies(self, has_bulk_copies: bool) -> Source {
        Source { has_bulk_copies, ..self }
    }

    /// Its name.
    pub fn package(&self) -> &str {
        &self.package
    }

    /// The command that compiles it for `target`, `core` and all dependencies with it, for what `machine` is called and has; of the
    /// library's kernels those whose names contain a part of `only`. What comes after it are arguments of cargo.
    pub fn rustc(&self, compiler: &Compiler, target: &str, machine: &Machine<'_>) -> Result<Cmd> {
        let mut cargo = compiler
            .cargo()
            .args("rustc --release --lib --crate-type cdylib -Zbuild-std=core --target")
            .arg(target)
            .arg("--manifest-path")
            .arg(self.manifest.to_string_lossy())
            .args("--package")
            .arg(&self.package);
        if self.is_device {
            let list = kernels::write_list(machine.name, machine.abilities, machine.only)?;
            let features = machine.features;
            cargo = cargo.args("--no-default-features --features").arg(features);
            cargo = cargo.env(kernels::VARIABLE, list.to_string_lossy());
        }
        Ok(cargo
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            // Codegen units of an incremental build are others: kernels that fit in registers spill.
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
            // PTX's splitter does not carry debug sections.
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .deadline(Duration::from_secs(900)))
    }
}

/// A machine as its kernels are compiled for it.
pub struct Machine<'a> {
    /// For its list of kernels.
    pub name: &'a str,
    /// What its kernels can do.
    pub abilities: Abilities<'a>,
    /// Of the device crate.
    pub features: &'a str,
    /// Parts of names of kernels.
    pub only: &'a str,
}

/// Compiles `source` for the GPU generation `sm` (90 for 9.0); of the library's kernels those whose names contain a part of `only`.
pub fn compile(compiler: &Compiler, source: &Source, sm: u32, only: &str) -> Result<String> {
    // A folder for each generation: the file's name does not tell for which it was built, so cargo would take one for
    // the other. All sources share it, and `core` with it.
    let target = target_dir().join(format!("ptx-build/sm_{sm}"));
    let output =
        command(compiler, source, sm, only)?.env("CARGO_TARGET_DIR", target.to_string_lossy()).run(&root())?;
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
    // taken by every driver since CUDA 11.8. Bulk copies came with 8.0, CUDA 12.0; later generations have that or a later one.
    let language = match sm {
        ..90 => " -Ctarget-feature=+ptx78",
        90..100 => " -Ctarget-feature=+ptx80",
        _ => "",
    };
    format!("-Ctarget-cpu=sm_{sm}{language}")
}

fn command(compiler: &Compiler, source: &Source, sm: u32, only: &str) -> Result<Cmd> {
    let machine = Machine {
        name: "ptx",
        abilities: Abilities { protocols: Protocol::ALL, has_bulk_copies: sm >= BULK_COPIES.0 },
        features: &features(sm, source.has_bulk_copies),
        only,
    };
    let cargo = source.rustc(compiler, "nvptx64-nvidia-cuda", &machine)?;
    // The one variable that no other goes before: a RUSTFLAGS of the user's would take the generation's place, and the driver refuses
    // what comes of that.
    let flags = target_flags(sm).replace(' ', "\u{1f}");
    Ok(cargo.args("-- --emit=asm -C linker=/bin/true").env("CARGO_ENCODED_RUSTFLAGS", flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_gets_the_instructions_of_those_before() {
        let of = |sm| features(sm, false);
        assert_eq!([of(70), of(80), of(89)], ["entries", "entries,sm80", "entries,sm80"]);
        assert_eq!([of(90), of(100)], ["entries,sm80,sm90"; 2]);
        assert_eq!([features(80, true), features(90, true)], ["entries,sm80", "entries,sm80,sm90,bulk"]);
    }
}
