//! Layer: xtask / ptx.
//! Takes: the text of a module.
//! Gives: its machine code and what each entry uses, by NVIDIA's assembler, which needs no GPU.
//! Never: assembles the same text twice: results are kept by the hash of text, target and assembler.

use super::usage::{self, Usage};
use crate::cmd::Cmd;
use crate::tools::{apt_install, root, target_dir};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The wheel that carries the assembler, and its files' hashes for x86-64 and aarch64.
const WHEEL: &str = "nvidia-cuda-nvcc==13.0.88";
const WHEEL_SHA256: [&str; 2] = [
    "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
    "c7ff28f86a24effdc6c034fa15230c549a273e4771b10a7fec14996f8cf3307f",
];

/// Of what the assembler says against a module: it repeats itself for every use of an instruction.
const SHOWN_LINES: usize = 8;

/// Takes one program out of a wheel, which is a zip file of 150 MB.
const UNPACK: &str = "import sys, zipfile, pathlib; z = zipfile.ZipFile(sys.argv[1]); \
     n = [n for n in z.namelist() if n.endswith('/bin/ptxas')][0]; pathlib.Path(sys.argv[2]).write_bytes(z.read(n))";

/// An assembler.
#[derive(Clone, Debug)]
pub struct Ptxas {
    program: PathBuf,
    /// As in `13.0.88`.
    pub version: String,
}

/// What the assembler made of a module.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// Machine code for the very generation, or nothing where this assembler no longer makes it.
    pub cubin: Option<Vec<u8>>,
    pub entries: Vec<Usage>,
}

impl Ptxas {
    /// One on the path, of `$CUDA_HOME`, of `/usr/local/cuda`, or fetched earlier; with `fetch`, fetched now.
    pub fn find(fetch: bool) -> Result<Ptxas> {
        let fetched = target_dir().join("tools/ptxas-13.0.88");
        let cuda_home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/ptxas"));
        let installed = [Some("ptxas".into()), cuda_home, Some("/usr/local/cuda/bin/ptxas".into())];
        let candidates = installed.into_iter().flatten().chain([fetched.clone()]);
        if let Some(found) = candidates.into_iter().find_map(Ptxas::probe) {
            return Ok(found);
        }
        if fetch {
            download(&fetched)?;
            if let Some(found) = Ptxas::probe(fetched) {
                return Ok(found);
            }
        }
        bail!(
            "ptxas is neither on the path nor in $CUDA_HOME; `cargo xtask build-ptx --fetch` gets it from PyPI ({WHEEL})"
        )
    }

    fn probe(program: PathBuf) -> Option<Ptxas> {
        let text = Cmd::new(program.to_string_lossy()).arg("--version").probe(&root())?;
        let version = text.split_whitespace().find_map(|word| word.strip_prefix('V'))?.to_string();
        Some(Ptxas { program, version })
    }

    /// Assembles `text` for `sm`. The error is the assembler's.
    pub fn assemble(&self, text: &str, sm: u32) -> Result<Assembled> {
        let mut hash = Sha256::new();
        hash.update(format!("{} sm_{sm}\n", self.version));
        hash.update(text);
        let folder = target_dir().join("ptx-build/cubin").join(hex(&hash.finalize()));
        let log = folder.join("log");
        if !log.is_file() {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join("ptx"), text)?;
            let output = self.run(&folder, sm)?;
            // Last, and by renaming: a log that is there says that the rest is.
            std::fs::write(folder.join("log.new"), output)?;
            std::fs::rename(folder.join("log.new"), &log)?;
        }
        let entries = usage::parse(&std::fs::read_to_string(&log)?)?;
        let cubin = std::fs::read(folder.join("cubin")).ok();
        Ok(Assembled { cubin, entries })
    }

    /// Returns what it printed. Where the assembler has dropped `sm`, assembles for the next one that it knows, as a
    /// check, and leaves no machine code.
    fn run(&self, folder: &Path, sm: u32) -> Result<String> {
        for arch in [sm, 75, 80, 90] {
            let name = if arch == sm { "cubin" } else { "check" };
            let output = Cmd::new(self.program.to_string_lossy())
                .arg("--verbose")
                .arg(format!("--gpu-name=sm_{arch}"))
                .arg(folder.join("ptx").to_string_lossy())
                .arg("--output-file")
                .arg(folder.join(name).to_string_lossy())
                .quiet()
                .deadline(Duration::from_secs(300))
                .run(&root())?;
            if output.success {
                return Ok(output.text);
            }
            if arch < sm || !output.text.contains("is not defined for option 'gpu-name'") {
                let said: Vec<&str> = output.text.lines().take(SHOWN_LINES).collect();
                let file = folder.join("ptx");
                bail!("ptxas {} for sm_{arch} on {}:\n{}", self.version, file.display(), said.join("\n"));
            }
        }
        bail!("ptxas {} knows neither sm_{sm} nor what came after it", self.version)
    }
}

/// Fetches the wheel with pip, which checks its hash, and keeps the one program.
fn download(to: &Path) -> Result<()> {
    let folder = target_dir().join("tools/wheel");
    std::fs::create_dir_all(&folder)?;
    let hashes: String = WHEEL_SHA256.iter().map(|hash| format!(" --hash=sha256:{hash}")).collect();
    let requirements = folder.join("requirements.txt");
    std::fs::write(&requirements, format!("{WHEEL}{hashes}\n"))?;
    if Cmd::new("python3").args("-m pip --version").probe(&root()).is_none() {
        apt_install("python3-pip")?;
    }
    let pip = Cmd::new("python3")
        .args("-m pip download --quiet --no-deps --only-binary :all: --require-hashes --requirement")
        .arg(requirements.to_string_lossy())
        .arg("--dest")
        .arg(folder.to_string_lossy())
        .deadline(Duration::from_secs(180));
    if !pip.run(&root())?.success {
        bail!("ptxas cannot be fetched; to try again: {pip}");
    }
    let wheel = std::fs::read_dir(&folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip fetched no wheel")?;
    let unpack = Cmd::new("python3").arg("-c").arg(UNPACK).arg(wheel.to_string_lossy());
    let unpacked = unpack.arg(to.to_string_lossy()).quiet().run(&root())?;
    if !unpacked.success {
        bail!("{} has no ptxas: {}", wheel.display(), unpacked.text);
    }
    make_executable(to)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
