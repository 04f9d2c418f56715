//! A driver without GPUs under the library: the one that the tool's tests have, compiled here, and a bundle without kernels.

use super::programs::{library_folder, scratch};
use oxccl_shared::abi::ABI_DIGEST;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder with `libcuda.so.1` and `oxccl.oxptx`.
pub fn folder() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = scratch(&format!("driver-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/tests/fake_gpu/lib.rs");
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let status = Command::new(compiler)
            .args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=1", "-Anon_snake_case", "-o"])
            .args([&folder.join("libcuda.so.1"), &source])
            .status();
        assert!(status.unwrap().success());
        std::fs::write(folder.join("oxccl.oxptx"), empty_bundle()).unwrap();
        folder
    })
}

fn empty_bundle() -> Vec<u8> {
    let index = format!(r#"{{"compiler":"none","commit":"test","abi":"{ABI_DIGEST:016x}","modules":[]}}"#);
    let mut file = b"OXCCLPTX\x01\0\0\0".to_vec();
    file.extend_from_slice(&(index.len() as u32).to_le_bytes());
    file.extend_from_slice(index.as_bytes());
    file.resize(file.len().next_multiple_of(64), 0);
    file
}

/// Runs a program over the fake driver.
pub fn run(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let folder = folder();
    let mut command = Command::new(program);
    command.args(arguments).env("OXCCL_PTX_PATH", folder.join("oxccl.oxptx"));
    command.env("LD_LIBRARY_PATH", format!("{}:{}", folder.display(), library_folder().display()));
    command.env("NCCL_SOCKET_IFNAME", "lo").envs(environment.iter().copied());
    command.output().unwrap()
}
