//! The cache: the guest's files, its kernel, and QEMU where the machine has none.

use super::apt::Apt;
use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Raise it when packages or preparations change: the cache is then fetched anew.
const RECIPE: &str = "1";

/// The unpacked files of a guest, ready for any number of runs.
pub struct Store {
    /// Where the Debian packages of the guest lie unpacked.
    pub guest: PathBuf,
    /// The kernel to boot.
    pub kernel: PathBuf,
    /// Where QEMU lies unpacked; none: it is on the path.
    pub qemu: Option<PathBuf>,
    /// The directory of the kernel's modules.
    pub modules: PathBuf,
}

impl Store {
    /// Opens the store and fills it if needed. Other processes wait meanwhile.
    pub fn open(refresh: bool) -> Result<Store> {
        if std::env::consts::ARCH != "x86_64" {
            bail!("the guest is Debian for x86_64, and this machine is {}", std::env::consts::ARCH);
        }
        let cache = cache_dir()?;
        fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let lock = File::create(cache.join("lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let ready = cache.join(format!("recipe-{RECIPE}"));
        if refresh || !ready.is_dir() {
            fill(&cache, &ready).context(
                "the guest cannot be prepared; it needs Debian 12 or later with apt-get, dpkg-deb and a mirror",
            )?;
        }
        Store::at(&ready)
    }

    fn at(dir: &Path) -> Result<Store> {
        let guest = dir.join("guest");
        let modules = only_entry(&guest.join("lib/modules"))?;
        let own_qemu = dir.join("qemu");
        let qemu = own_qemu.is_dir().then_some(own_qemu);
        Ok(Store { guest, kernel: dir.join("kernel"), qemu, modules })
    }

    /// Where the guest's libraries are, for ldd.
    pub fn library_path(&self) -> String {
        library_path(&self.guest)
    }
}

/// The directories of libraries below an unpacked tree.
pub fn library_path(tree: &Path) -> String {
    let dirs = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"];
    dirs.map(|dir| tree.join(dir).display().to_string()).join(":")
}

/// `$XDG_CACHE_HOME/oxccl/softroce`: shared by all checkouts, because it costs 90 MB of downloads and 600 MB of disk.
fn cache_dir() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = base.or_else(home).context("neither XDG_CACHE_HOME nor HOME says where to keep the guest")?;
    Ok(base.join("oxccl/softroce"))
}

/// Makes everything beside `ready` and then names it so: a half-filled store is never taken for a whole one.
fn fill(cache: &Path, ready: &Path) -> Result<()> {
    let new = cache.join("new");
    remove(&new)?;
    eprintln!("softroce: fetching Debian's kernel and QEMU once, to {}", cache.display());
    if let Err(error) = fetch(&Apt::of_machine(), &new) {
        eprintln!("softroce: {error:#}; trying again with fresh lists of packages");
        remove(&new)?;
        fetch(&Apt::private(&cache.join("apt"))?, &new)?;
    }
    remove(&cache.join("apt"))?;
    let store = Store::at(&new)?;
    let busybox = store.guest.join("bin/busybox");
    let version = store.modules.file_name().and_then(|name| name.to_str()).context("no kernel version")?;
    let depmod = Cmd::new(busybox.to_string_lossy()).args("depmod -b").arg(store.guest.to_string_lossy());
    if depmod.arg(version).probe(&root()).is_none() {
        bail!("busybox cannot list the dependencies of the kernel's modules");
    }
    unpack_kernel(&store.guest.join(format!("boot/vmlinuz-{version}")), &store.kernel)?;
    remove(ready)?;
    Ok(fs::rename(&new, ready)?)
}

fn fetch(apt: &Apt, to: &Path) -> Result<()> {
    let debs = to.join("debs");
    apt.fetch_guest(&to.join("guest"), &debs)?;
    if Cmd::new("qemu-system-x86_64").arg("--version").probe(&root()).is_none() {
        apt.fetch_qemu(&to.join("qemu"), &debs)?;
    }
    Ok(())
}

/// Writes the ELF kernel inside a bzImage, which QEMU starts by its PVH note: that saves the guest from unpacking it, 4 s under
/// emulation. Without xz, or if the kernel is packed otherwise, the bzImage as it is.
fn unpack_kernel(image: &Path, kernel: &Path) -> Result<()> {
    const XZ: &[u8] = b"\xfd7zXZ";
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    if let Some(start) = bytes.windows(XZ.len()).position(|window| window == XZ) {
        let packed = kernel.with_extension("xz");
        fs::write(&packed, &bytes[start..])?;
        // It complains about what follows the kernel; whether a kernel came out is checked below.
        let unpacked = Command::new("xz")
            .args(["-dc", "--single-stream"])
            .stdin(File::open(&packed)?)
            .stdout(File::create(kernel)?)
            .stderr(Stdio::null())
            .status();
        fs::remove_file(&packed)?;
        let is_elf = fs::read(kernel).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
        if unpacked.is_ok() && is_elf {
            return Ok(());
        }
    }
    fs::copy(image, kernel)?;
    Ok(())
}

fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn only_entry(dir: &Path) -> Result<PathBuf> {
    let first = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?.next();
    Ok(first.with_context(|| format!("{} is empty", dir.display()))??.path())
}
