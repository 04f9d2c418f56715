//! Layer: xtask / ptx, `cargo xtask build-ptx`.
//! Takes: the kernels' sources and this machine's toolchains.
//! Gives: for each GPU generation one PTX file and one file of machine code per module, checked; a manifest; and all of
//! it in one bundle that the library opens at run time.
//! Never: needs a GPU, a driver or a CUDA toolkit; leaves a half-written bundle.

mod bundle;
mod cached;
mod check;
pub mod compile;
pub mod compiler;
mod manifest;
mod names;
mod ptxas;
mod split;
mod text;
mod usage;

use crate::tools::{root, target_dir};
use anyhow::{Context, Result, bail};
use compile::Source;
use compiler::Compiler;
use manifest::{Entry, File, Manifest, Origin, Target};
use oxccl_shared::abi::DataType;
use ptxas::{Assembled, Ptxas};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;
use text::Ptx;
use usage::Usage;

pub use ptxas::hex;

/// What is built by default, as compute capability without the dot.
pub const GENERATIONS: [u32; 4] = [70, 80, 90, 100];

/// `cargo xtask build-ptx`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// GPU generations, as compute capability without the dot.
    #[arg(long, value_delimiter = ',', default_values_t = GENERATIONS)]
    pub sm: Vec<u32>,
    /// Where to write; without it, `ptx` in cargo's target directory, where the library looks.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Only kernels whose names contain one of these parts, with commas between them.
    #[arg(long, value_name = "PARTS", default_value = "")]
    pub only: String,
    /// Fetch NVIDIA's assembler from PyPI where none is installed.
    #[arg(long)]
    pub fetch: bool,
    /// Assemble, and check the registers of, only the kernels of these types and those of none; drivers compile the others.
    #[arg(long, value_delimiter = ',', value_name = "TYPES")]
    pub assemble: Vec<String>,
    /// Build this crate, which lies outside the workspace, instead of the library's kernels: into a bundle of its own with --out.
    #[arg(long = "crate", value_name = "DIR")]
    pub source: Option<String>,
    /// Kernels by Simple that can move slots by bulk copies, which `OXCCL_TILE_KIB` turns on (docs/measurements/2026-11-23-bulk-copies.md).
    #[arg(long)]
    pub bulk: bool,
}

/// A module with all that is known of it.
struct Built {
    sm: u32,
    module: split::Module,
    cubin: Option<Vec<u8>>,
    entries: Vec<Entry>,
}

/// Builds what `options` ask for. Returns whether no check complained; files are written in either case, so that a kernel
/// can be tried before it is tuned.
pub fn build(options: &Options) -> Result<bool> {
    if let Some(unknown) = options.assemble.iter().find(|word| !is_type(word)) {
        bail!(
            "--assemble {unknown}: the name of a type was expected, as kernels have it: u8, f32, bf16, ..."
        );
    }
    let compiler = Compiler::find()?;
    let ptxas = match Ptxas::find(options.fetch) {
        Ok(ptxas) => Some(ptxas),
        Err(reason) if options.fetch => return Err(reason),
        Err(reason) => {
            eprintln!("build-ptx: no machine code and no check of registers: {reason:#}");
            None
        }
    };
    let source = options
        .source
        .as_deref()
        .map_or_else(|| Ok(Source::device()), Source::folder)?
        .with_bulk_copies(options.bulk);
    let out = options.out.clone().map_or_else(|| target_dir().join("ptx"), |out| root().join(out));
    let (commit, source_sha256) = manifest::sources()?;
    let origin = Origin {
        compiler: compiler.version.clone(),
        llvm: compiler.llvm.clone(),
        ptxas: ptxas.as_ref().map(|ptxas| ptxas.version.clone()),
        commit,
        source_sha256,
        abi: format!("{:016x}", oxccl_shared::abi::ABI_DIGEST),
    };
    let (mut built, mut complaints) = (Vec::new(), Vec::new());
    for sm in &options.sm {
        let start = Instant::now();
        let text = compile::compile(&compiler, &source, *sm, &options.only)?;
        let compiled = start.elapsed().as_secs_f64();
        let modules = split::split(&text).with_context(|| format!("the PTX for sm_{sm}"))?;
        let before = built.len();
        for (module, result) in assemble_all(modules, *sm, ptxas.as_ref(), &options.assemble) {
            let (module, found) = finish(module, *sm, result?)?;
            complaints.extend(found.into_iter().map(|complaint| format!("sm_{sm}: {complaint}")));
            built.push(module);
        }
        let entries: usize = built[before..].iter().map(|module: &Built| module.entries.len()).sum();
        if let Some(note) = check::unbounded(&usages(&built[before..])) {
            eprintln!("build-ptx: sm_{sm}: {note}");
        }
        eprintln!(
            "build-ptx: sm_{sm}: {entries} entries in {} modules; compiled in {compiled:.1} s, split and assembled in {:.1} s",
            built.len() - before,
            start.elapsed().as_secs_f64() - compiled
        );
    }
    write(&out, &origin, &built)?;
    report(&out, &complaints)
}

/// Whether there is an assembler, or one could be fetched.
pub fn has_assembler() -> bool {
    Ptxas::find(true).inspect_err(|reason| eprintln!("{reason:#}")).is_ok()
}

/// A bundle that this checkout's library opens and that has no kernel, for tests of what brings one.
pub fn without_kernels() -> Result<Vec<u8>> {
    let (commit, source_sha256) = manifest::sources()?;
    let abi = format!("{:016x}", oxccl_shared::abi::ABI_DIGEST);
    let none = || "none".to_string();
    bundle::pack(&Origin { compiler: none(), llvm: none(), ptxas: None, commit, source_sha256, abi }, &[])
}

/// What the assembler reported.
fn usages(built: &[Built]) -> Vec<&Usage> {
    let entries = built.iter().flat_map(|module| &module.entries);
    entries.filter_map(|entry| if let Entry::Assembled(usage) = entry { Some(usage) } else { None }).collect()
}

/// Whether a module is to be assembled: it is of one of these types, or of none, or they are all wanted.
fn is_assembled(module: &str, types: &[String]) -> bool {
    let word = module.rsplit('_').next().unwrap_or_default();
    types.is_empty() || !is_type(word) || types.iter().any(|wanted| wanted == word)
}

/// Whether kernels of a type have this word in their names: Rust's for it.
fn is_type(word: &str) -> bool {
    DataType::ALL.iter().any(|dtype| format!("{dtype:?}").to_lowercase() == word)
}

/// Assembles those of these types on every core, and gives all, in the order of the modules.
fn assemble_all(
    modules: Vec<split::Module>,
    sm: u32,
    ptxas: Option<&Ptxas>,
    types: &[String],
) -> Vec<(split::Module, Result<Option<Assembled>>)> {
    let Some(ptxas) = ptxas else {
        return modules.into_iter().map(|module| (module, Ok(None))).collect();
    };
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    let (queue, done) = (Mutex::new(modules.into_iter().enumerate()), Mutex::new(Vec::new()));
    let next = || queue.lock().expect("no worker panics with the queue").next();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((i, module)) = next() {
                    let result = match is_assembled(&module.name, types) {
                        true => ptxas.assemble(&module.text, sm).map(Some),
                        false => Ok(None),
                    };
                    done.lock().expect("no worker panics with the results").push((i, module, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("every worker has ended");
    done.sort_by_key(|(i, ..)| *i);
    done.into_iter().map(|(_, module, result)| (module, result)).collect()
}

/// Checks a module. Returns it with its entries, and the complaints.
fn finish(module: split::Module, sm: u32, assembled: Option<Assembled>) -> Result<(Built, Vec<String>)> {
    let ptx = Ptx::parse(&module.text)?;
    let mut complaints = check::text(&ptx);
    let (cubin, entries) = match assembled {
        Some(Assembled { cubin, mut entries }) => {
            check::with_bounds(&ptx, &mut entries)?;
            complaints.extend(check::usage(&entries));
            (cubin, entries.into_iter().map(Entry::Assembled).collect())
        }
        None => {
            let named = |entry: &text::Item| Entry::Named {
                name: entry.name.into(),
                max_threads: check::max_threads(entry),
            };
            (None, ptx.entries().map(named).collect())
        }
    };
    Ok((Built { sm, module, cubin, entries }, complaints))
}

/// Writes the files, the manifest and, last and at once, the bundle.
fn write(out: &Path, origin: &Origin, built: &[Built]) -> Result<()> {
    let mut targets: Vec<Target> = Vec::new();
    for Built { sm, module, cubin, entries } in built {
        if targets.last().is_none_or(|target| target.sm != *sm) {
            // Modules of an earlier build must not pass for this one's.
            let _ = std::fs::remove_dir_all(out.join(format!("sm_{sm}")));
            targets.push(Target { sm: *sm, modules: Vec::new() });
        }
        let put = |extension: &str, contents: &[u8]| -> Result<File> {
            let path = format!("sm_{sm}/{}.{extension}", module.name);
            replace(&out.join(&path), contents)?;
            Ok(File::of(path, contents))
        };
        let ptx = put("ptx", module.text.as_bytes())?;
        let cubin = cubin.as_deref().map(|code| put("cubin", code)).transpose()?;
        let target = targets.last_mut().expect("pushed above");
        target.modules.push(manifest::Module {
            name: module.name.clone(),
            ptx,
            cubin,
            entries: entries.clone(),
        });
    }
    let manifest = Manifest { format: 1, origin: origin.clone(), targets };
    replace(&out.join("manifest.json"), &serde_json::to_vec_pretty(&manifest)?)?;
    let packed: Vec<bundle::Packed> = built
        .iter()
        .map(|Built { sm, module, cubin, entries }| bundle::Packed {
            name: &module.name,
            sm: *sm,
            entries,
            ptx: &module.text,
            cubin: cubin.as_deref(),
        })
        .collect();
    replace(&out.join("oxccl.oxptx"), &bundle::pack(origin, &packed)?)
}

/// Writes a file such that a reader finds the old one or the new one; a process that has the old one open keeps it.
fn replace(path: &Path, contents: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file lies in a folder")?;
    std::fs::create_dir_all(folder)?;
    let new = path.with_extension("new");
    std::fs::write(&new, contents).with_context(|| format!("cannot write {}", new.display()))?;
    std::fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))
}

fn report(out: &Path, complaints: &[String]) -> Result<bool> {
    for complaint in complaints {
        eprintln!("error: {complaint}");
    }
    let bundle = out.join("oxccl.oxptx");
    let bytes = std::fs::metadata(&bundle)?.len();
    eprintln!(
        "build-ptx: {} ({:.1} MB), {} complaints",
        bundle.display(),
        bytes as f64 / 1e6,
        complaints.len()
    );
    Ok(complaints.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_other_types_are_left_to_drivers() {
        let types = ["bf16".to_string(), "f8e4m3".into()];
        for (module, is) in [
            ("all_reduce_simple_bf16", true),
            ("reduce_ring_ll_f8e4m3", true),
            ("reduce_ring_ll_f8e5m2", false),
            ("all_reduce_simple_i64", false),
            ("send_recv_ll", true),
            ("all_gather_symmetric", true),
        ] {
            assert_eq!(is_assembled(module, &types), is, "{module}");
            assert!(is_assembled(module, &[]), "{module}");
        }
    }
}
