//! Layer: xtask / package, `cargo xtask package`.
//! Takes: the library, the tool, the kernels' bundle, the header, the licences of all that is in them.
//! Gives: a tarball, a Debian package and a Python wheel; the same bytes from the same inputs.
//! Never: runs what it packs; puts a file where NVIDIA's packages have one.

mod archive;
mod bundle;
mod deb;
mod elf;
mod notices;
mod parts;
mod pkgconfig;
mod programs;
mod tarball;
mod tree;
mod wheel;

use crate::beside;
use crate::ptx;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result};
use parts::Parts;
use std::fs;
use std::path::{Path, PathBuf};

pub use parts::VERSION;
pub use programs::{LIBRARY, PLUGIN, TOOL};

/// `cargo xtask package`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// The kernels, a file of `cargo xtask build-ptx`. Default: built, for all generations of GPUs.
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Where to write. Default: `dist` in cargo's target directory.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// What to make.
    #[arg(long, value_delimiter = ',', default_value = "tar,deb,wheel")]
    pub format: Vec<Format>,
    /// Pack the libnccl.so, the libnccl_net_oxccl.so and the oxccl of this folder instead of building them.
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
}

/// A kind of package.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A folder to unpack anywhere.
    Tar,
    /// For Debian, Ubuntu and what comes from them.
    Deb,
    /// For pip.
    Wheel,
}

/// Makes the packages. Returns whether no check of the kernels complained.
pub fn package(options: &Options) -> Result<bool> {
    let out = options.out.clone().map_or_else(|| target_dir().join("dist"), |out| root().join(out));
    let (path, is_good) = kernels(options.bundle.as_deref())?;
    let programs = match &options.programs {
        Some(folder) => programs::take(&root().join(folder))?,
        None => programs::build()?,
    };
    let parts = Parts::gather(programs, &path)?;
    fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    // Compressing takes most of the time.
    let make = |format: Format| -> Result<(String, Vec<u8>)> {
        match format {
            Format::Tar => tarball::pack(&parts),
            Format::Deb => deb::pack(&parts),
            Format::Wheel => wheel::pack(&parts),
        }
    };
    for made in beside::side_by_side(options.format.clone(), 2, make) {
        let (name, contents) = made?;
        let file = out.join(name);
        fs::write(&file, &contents).with_context(|| format!("writing {}", file.display()))?;
        beside::note(format_args!("package: {} ({:.1} MB)", file.display(), contents.len() as f64 / 1e6));
    }
    Ok(is_good)
}

/// The bundle's file, and whether no check complained as it was built.
fn kernels(given: Option<&Path>) -> Result<(PathBuf, bool)> {
    if let Some(given) = given {
        return Ok((root().join(given), true));
    }
    let out = target_dir().join("package-build/ptx");
    let options = ptx::Options {
        sm: ptx::GENERATIONS.to_vec(),
        out: Some(out.clone()),
        only: String::new(),
        assemble: Vec::new(),
        fetch: true,
        source: None,
        bulk: false,
    };
    let is_good = ptx::build(&options)?;
    Ok((out.join("oxccl.oxptx"), is_good))
}
