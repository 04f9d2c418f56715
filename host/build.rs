//! Compiles the one function of the library that has to be C, and packs the kernels that the library is to carry.

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
    use std::fs::File;
    use std::path::{Path, PathBuf};

    /// Names the file: a bundle of `cargo xtask build-ptx`, or one that zstd has compressed.
    const VARIABLE: &str = "OXCCL_EMBED_KERNELS";
    /// Most of the file is the same for many kernels, far apart: a window over all of it packs it to a tenth.
    const WINDOW_LOG: u32 = 27;
    const LEVEL: i32 = 9;

    pub fn kernels() {
        println!("cargo::rerun-if-env-changed={VARIABLE}");
        let from = file();
        println!("cargo::rerun-if-changed={}", from.display());
        let to = Path::new(&std::env::var_os("OUT_DIR").expect("cargo sets it")).join("oxccl.oxptx.zst");
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
        let brought = here.join("kernels/oxccl.oxptx.zst");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "../target".into(), PathBuf::from);
        if brought.exists() { brought } else { here.join(target).join("ptx/oxccl.oxptx") }
    }

    fn pack(from: &Path, to: &Path) -> std::io::Result<()> {
        let (mut from_file, mut to_file) = (File::open(from)?, File::create(to)?);
        if from.extension().is_some_and(|extension| extension == "zst") {
            return std::io::copy(&mut from_file, &mut to_file).map(drop);
        }
        let mut encoder = zstd::stream::Encoder::new(to_file, LEVEL)?;
        encoder.window_log(WINDOW_LOG)?;
        encoder.long_distance_matching(true)?;
        std::io::copy(&mut from_file, &mut encoder)?;
        encoder.finish().map(drop)
    }
}
