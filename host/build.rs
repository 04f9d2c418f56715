//! Compiles the one function of the library that has to be C, and packs the kernels that the library is to carry.

#[cfg(feature = "embed-kernels")]
#[path = "src/gpu/bundle/renumber.rs"]
#[allow(dead_code, reason = "the library decodes")]
mod renumber;

#[cfg(feature = "embed-kernels")]
#[path = "src/gpu/bundle/packed.rs"]
#[allow(dead_code, reason = "the library unpacks")]
mod packed;

fn main() {
    let source = "src/net/plugin/log.c";
    println!("cargo::rerun-if-changed={source}");
    cc::Build::new().file(source).warnings(true).compile("oxccl_plugin_log");
    #[cfg(feature = "embed-kernels")]
    embed::kernels();
}

/// The feature `embed-kernels`.
#[cfg(feature = "embed-kernels")]
mod embed {
    use std::io::{Error, Result};
    use std::path::{Path, PathBuf};

    /// Names the file: a bundle of `cargo xtask build-ptx`, or one that is packed already.
    const VARIABLE: &str = "OXCCL_EMBED_KERNELS";
    /// The generations whose machine code comes too, as in `80,90`.
    const CODE: &str = "OXCCL_EMBED_MACHINE_CODE";

    pub fn kernels() {
        println!("cargo::rerun-if-env-changed={VARIABLE}");
        println!("cargo::rerun-if-env-changed={CODE}");
        let from = file();
        println!("cargo::rerun-if-changed={}", from.display());
        let to = Path::new(&std::env::var_os("OUT_DIR").expect("cargo sets it")).join("oxccl.oxptx.packed");
        if let Err(error) = pack(&from, &to) {
            panic!(
                "the feature embed-kernels needs {}: {error}; make it with `cargo xtask build-ptx`, or name another file with {VARIABLE}",
                from.display()
            );
        }
    }

    /// What is named; else what the published crate brings; else where the checkout's build leaves it.
    fn file() -> PathBuf {
        if let Some(named) = std::env::var_os(VARIABLE) {
            return named.into();
        }
        let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
        let brought = here.join("kernels/oxccl.oxptx.packed");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "../target".into(), PathBuf::from);
        if brought.exists() { brought } else { here.join(target).join("ptx/oxccl.oxptx") }
    }

    fn pack(from: &Path, to: &Path) -> Result<()> {
        let bytes = std::fs::read(from)?;
        if from.extension().is_some_and(|extension| extension == "packed") {
            return std::fs::write(to, bytes);
        }
        std::fs::write(to, super::packed::pack(&bytes, &code_for()?)?)
    }

    fn code_for() -> Result<Vec<u64>> {
        let text = std::env::var(CODE).unwrap_or_default();
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let numbers = words.map(|word| word.parse().map_err(|_| word));
        numbers.collect::<std::result::Result<_, &str>>().map_err(|word| {
            Error::other(format!("{CODE} has '{word}', where a generation like 90 was expected"))
        })
    }
}
