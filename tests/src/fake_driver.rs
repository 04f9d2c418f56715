//! A CUDA driver for programs on machines without a GPU: the one of the tool's tests, compiled here, and a bundle without kernels.

use oxccl_shared::abi::ABI_DIGEST;
use oxccl_shared::algo::kernels::kernels;
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
        std::fs::write(folder.join("oxccl.oxptx"), bundle(&[], None)).expect("a bundle");
        FakeDriver { folder: folder.into() }
    }

    /// Where `libcuda.so.1` and the bundle are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A bundle with all kernels, a module each, and with machine code or without it. They do nothing.
    ///
    /// # Panics
    /// The folder cannot be written.
    pub fn kernels(&self, has_code: bool) -> PathBuf {
        let path = self.folder.join(if has_code { "code.oxptx" } else { "ptx.oxptx" });
        let all: Vec<String> = kernels().map(|kernel| kernel.to_string()).collect();
        std::fs::write(&path, bundle(&all, has_code.then_some(CODE))).expect("a bundle");
        path
    }

    /// What the driver's streams are asked for goes to this file.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// A letter for each of the next launches: `x` is refused.
    pub fn refusals(&self) -> PathBuf {
        self.folder.join("refusals")
    }

    /// Gives `program` the driver and the bundle.
    pub fn under<'a>(&self, program: &'a mut Command) -> &'a mut Command {
        program.env("LD_LIBRARY_PATH", &self.folder).env("OXCCL_PTX_PATH", self.folder.join("oxccl.oxptx"));
        program
            .env("FAKE_LOG", self.log())
            .env("FAKE_REFUSE", self.refusals())
            .env("NCCL_SOCKET_IFNAME", "lo")
    }
}

/// An image and its SHA-256.
type Image = (&'static [u8; 13], &'static str);

const PTX: Image = (b".version 7.8\0", "8d66a85243bfa71ea74a58721174334c6f97946133ea84d386508c16baf0a8d0");
const CODE: Image =
    (b"\x7fELF code\0\0\0\0", "cd7524af4e1cb7c204296bb519e582eaf60b8915ff1c036d567983a6defdda7c");
/// Where the second image begins.
const CODE_AT: usize = 64;

/// A bundle of such kernels for sm_90. One without kernels is enough for a rank that is alone: its operations are copies.
fn bundle(kernels: &[String], code: Option<Image>) -> Vec<u8> {
    let span = |(bytes, hash): Image, offset: usize| {
        format!(r#"{{"offset":{offset},"bytes":{},"sha256":"{hash}"}}"#, bytes.len())
    };
    let (ptx, cubin) = (span(PTX, 0), code.map_or("null".to_owned(), |code| span(code, CODE_AT)));
    let module = |name: &String| {
        format!(r#"{{"name":"{name}","sm":90,"entries":[{{"name":"{name}"}}],"ptx":{ptx},"cubin":{cubin}}}"#)
    };
    let modules: Vec<String> = kernels.iter().map(module).collect();
    let modules = modules.join(",");
    let index =
        format!(r#"{{"compiler":"none","commit":"test","abi":"{ABI_DIGEST:016x}","modules":[{modules}]}}"#);
    let mut file = b"OXCCLPTX\x01\0\0\0".to_vec();
    file.extend_from_slice(&(index.len() as u32).to_le_bytes());
    file.extend_from_slice(index.as_bytes());
    file.resize(file.len().next_multiple_of(64), 0);
    let start = file.len();
    file.extend_from_slice(PTX.0);
    file.resize(start + CODE_AT, 0);
    file.extend_from_slice(CODE.0);
    file
}
