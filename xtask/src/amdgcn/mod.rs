//! Layer: xtask / amdgcn, `cargo xtask build-amdgcn`, beside `ptx`.
//! Takes: the kernels' sources and a nightly of rustup, which carries LLVM's AMDGPU back end and a linker.
//! Gives: for each processor one ELF code object, its assembly, and a list of what each kernel uses; checked.
//! Never: needs a GPU or ROCm; runs a kernel.

mod elf;
mod notes;

use crate::cmd::Cmd;
use crate::kernels::{self, Abilities};
use crate::ptx::compile::{Machine, Source};
use crate::ptx::compiler::Compiler;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, bail};
use notes::Kernel;
use oxccl_shared::abi::Protocol;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

const TARGET: &str = "amdgcn-amd-amdhsa";

/// The processors that the kernels are written for: MI200 and MI300.
pub const PROCESSORS: [&str; 2] = ["gfx90a", "gfx942"];

/// What an AMD GPU can do: its block is no `oxccl_device::gpu::Lines`, so there is no LL128.
const ABILITIES: Abilities<'_> =
    Abilities { protocols: &[Protocol::LL, Protocol::Simple], has_bulk_copies: false };

/// `cargo xtask build-amdgcn`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Processors, as the compiler calls them.
    #[arg(long, value_delimiter = ',', default_value = "gfx90a,gfx942")]
    pub cpu: Vec<String>,
    /// Where to write; without it, `amdgcn` in cargo's target directory.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Only kernels whose name contains this, or one of several with commas between.
    #[arg(long, value_name = "PATTERN", default_value = "")]
    pub only: String,
    /// Build this crate, which lies outside the workspace, instead of the library's kernels.
    #[arg(long = "crate", value_name = "DIR")]
    pub source: Option<String>,
}

/// `<out>/<cpu>/manifest.json`.
#[derive(Serialize)]
struct Manifest<'a> {
    compiler: &'a str,
    cpu: &'a str,
    kernels: &'a [Kernel],
}

/// Builds what `options` ask for. Returns whether no check complained; files are written in either case.
pub fn build(options: &Options) -> Result<bool> {
    if let Some(cpu) = options.cpu.iter().find(|cpu| !PROCESSORS.contains(&cpu.as_str())) {
        bail!("'{cpu}' is not among {}", PROCESSORS.join(", "));
    }
    let compiler = Compiler::find()?;
    let source = options.source.as_deref().map_or_else(|| Ok(Source::device()), Source::folder)?;
    let out = options.out.clone().map_or_else(|| target_dir().join("amdgcn"), |out| root().join(out));
    let mut is_ok = true;
    for cpu in &options.cpu {
        let start = Instant::now();
        let built = compile(&compiler, &source, cpu, &options.only)?;
        let kernels = notes::kernels(&built.assembly).with_context(|| format!("the notes for {cpu}"))?;
        let folder = out.join(cpu);
        write(&folder, &built, &Manifest { compiler: &compiler.version, cpu, kernels: &kernels })?;
        let mut complaints = check_symbols(&built.object, &kernels)?;
        if options.source.is_none() {
            complaints.extend(check_registry(&kernels, &options.only));
        }
        for complaint in &complaints {
            eprintln!("error: {cpu}: {complaint}");
        }
        is_ok &= complaints.is_empty();
        eprintln!(
            "build-amdgcn: {cpu}: {} kernels in {} ({:.1} MB), {} complaints, {:.1} s; {}",
            kernels.len(),
            folder.join("oxccl.co").display(),
            built.object.len() as f64 / 1e6,
            complaints.len(),
            start.elapsed().as_secs_f64(),
            notes::summary(&kernels)
        );
    }
    Ok(is_ok)
}

/// What the compiler made.
struct Built {
    assembly: String,
    object: Vec<u8>,
}

fn compile(compiler: &Compiler, source: &Source, cpu: &str, only: &str) -> Result<Built> {
    // A folder for each processor: `core` is compiled for it too.
    let target = target_dir().join(format!("amdgcn-build/{cpu}"));
    let machine = Machine { name: "amdgcn", abilities: ABILITIES, features: "entries", only };
    let cargo: Cmd = source.rustc(compiler, TARGET, &machine)?;
    let output = cargo
        // Equal kernels made one would leave the others without a descriptor.
        .args("-- --emit=asm,link -Zmerge-functions=disabled")
        // For the target alone: scripts of dependencies are built for this machine.
        .env("CARGO_ENCODED_RUSTFLAGS", format!("-Ctarget-cpu={cpu}"))
        // An incremental build with fat LTO that also links stops this compiler.
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .run(&root())?;
    let package = source.package();
    if !output.success {
        bail!("{package} does not compile for {cpu} with {}", compiler.version);
    }
    let stem = target.join(TARGET).join("release/deps").join(package.replace('-', "_"));
    let read = |extension: &str| {
        let path = stem.with_extension(extension);
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(Built { assembly: String::from_utf8(read("s")?).context("assembly is text")?, object: read("elf")? })
}

fn write(folder: &Path, built: &Built, manifest: &Manifest<'_>) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let put = |name: &str, contents: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, contents).with_context(|| format!("cannot write {}", path.display()))
    };
    put("oxccl.s", built.assembly.as_bytes())?;
    put("oxccl.co", &built.object)?;
    put("manifest.json", &serde_json::to_vec_pretty(manifest)?)
}

/// A kernel is launched by its descriptor, which must be among the symbols that a loader sees.
fn check_symbols(object: &[u8], kernels: &[Kernel]) -> Result<Vec<String>> {
    let symbols = elf::dynamic_symbols(object).context("the code object")?;
    let lacks = |kernel: &&Kernel| !symbols.contains(&kernel.symbol) || !symbols.contains(&kernel.name);
    Ok(kernels.iter().filter(lacks).map(|kernel| format!("no symbol for {}", kernel.name)).collect())
}

/// The kernels must be those of the registry, no more and no less.
fn check_registry(built: &[Kernel], only: &str) -> Vec<String> {
    let built: BTreeSet<String> = built.iter().map(|kernel| kernel.name.clone()).collect();
    let wanted: BTreeSet<String> =
        kernels::wanted(ABILITIES, only).map(|kernel| kernel.to_string()).collect();
    let missing = wanted.difference(&built).map(|name| format!("{name} was not built"));
    let extra = built.difference(&wanted).map(|name| format!("{name} is not in the registry"));
    missing.chain(extra).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_too_few_and_one_too_many_are_named() {
        let only = "all_gather_ring";
        let kernel =
            |name: &str| Kernel { name: name.into(), symbol: format!("{name}.kd"), ..Kernel::default() };
        let both = ["oxccl_all_gather_ring_ll", "oxccl_all_gather_ring_simple"].map(kernel);
        assert_eq!(check_registry(&both, only), Vec::<String>::new());
        let wrong = [kernel("oxccl_all_gather_ring_ll"), kernel("oxccl_all_gather_ring_ll128")];
        assert_eq!(
            check_registry(&wrong, only),
            [
                "oxccl_all_gather_ring_simple was not built",
                "oxccl_all_gather_ring_ll128 is not in the registry"
            ]
        );
    }

    #[test]
    fn an_unknown_processor_is_refused() {
        let options = Options { cpu: vec!["gfx1100".into()], out: None, only: String::new(), source: None };
        assert!(build(&options).unwrap_err().to_string().contains("'gfx1100'"));
    }
}
