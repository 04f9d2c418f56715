//! A CUDA driver for programs on machines without a GPU: the one of the tool's tests, compiled here, and a bundle without kernels.

use oxccl_shared::abi::ABI_DIGEST;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/tests/fake_gpu/lib.rs");

/// What a program over the fake driver is started with.
#[derive(Debug)]
pub struct FakeDriver {
    folder: PathBuf,
}

impl FakeDriver {
    /// Puts both files into `folder`.
    ///
    /// # Panics
    /// The driver does not compile, or the folder cannot be written.
    pub fn make(folder: &Path) -> FakeDriver {
        let library = folder.join("libcuda.so.1");
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let status = Command::new(compiler)
            .args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=1", "-Anon_snake_case", "-o"])
            .args([&library, Path::new(SOURCE)])
            .status();
        assert!(status.expect("a compiler").success(), "{SOURCE} does not compile");
        std::fs::write(folder.join("oxccl.oxptx"), bundle_without_kernels()).expect("a bundle");
        FakeDriver { folder: folder.into() }
    }

    /// Where `libcuda.so.1` and the bundle are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the driver's streams are asked for goes to this file.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Gives `program` the driver and the bundle.
    pub fn under<'a>(&self, program: &'a mut Command) -> &'a mut Command {
        program.env("LD_LIBRARY_PATH", &self.folder).env("OXCCL_PTX_PATH", self.folder.join("oxccl.oxptx"));
        program.env("FAKE_LOG", self.log()).env("NCCL_SOCKET_IFNAME", "lo")
    }
}

/// Enough for a rank that is alone: its operations are copies.
fn bundle_without_kernels() -> Vec<u8> {
    let index = format!(r#"{{"compiler":"none","commit":"test","abi":"{ABI_DIGEST:016x}","modules":[]}}"#);
    let mut file = b"OXCCLPTX\x01\0\0\0".to_vec();
    file.extend_from_slice(&(index.len() as u32).to_le_bytes());
    file.extend_from_slice(index.as_bytes());
    file.resize(file.len().next_multiple_of(64), 0);
    file
}
