//! The Debian package.
//!
//! It lies beside NVIDIA's `libnccl2` and shares no path with it, so that either can be installed, or both; so it neither
//! conflicts with it nor provides it: `Provides` would let packages that were built against NVIDIA's library run on ours without
//! anybody having asked for that. Programs take ours by the run path that `oxccl.pc` gives them, or by LD_PRELOAD.

use super::archive;
use super::parts::{Parts, VERSION, documents};
use super::pkgconfig;
use super::tree::{BUNDLE, PLUGIN, Tree};
use anyhow::{Result, bail};
use ar::{Builder, Header};
use std::env::consts::ARCH;

/// Where the library, the kernels and the tool lie side by side, as they look for each other.
const FOLDER: &str = "usr/lib/oxccl";
const INCLUDE: &str = "usr/include/oxccl";
const DOCS: &str = "usr/share/doc/oxccl";
/// Of the packaging; the version itself is upstream's.
const REVISION: &str = "1";

/// File name and contents.
pub fn pack(parts: &Parts) -> Result<(String, Vec<u8>)> {
    let (machine, triplet) = match ARCH {
        "x86_64" => ("amd64", "x86_64-linux-gnu"),
        "aarch64" => ("arm64", "aarch64-linux-gnu"),
        other => bail!("Debian's name for {other} is not known here"),
    };
    let mut tree = Tree::default();
    tree.library(FOLDER, &parts.nccl, &parts.library);
    tree.file(format!("{FOLDER}/{PLUGIN}"), &parts.plugin);
    tree.file(format!("{FOLDER}/{BUNDLE}"), &parts.bundle);
    tree.program(format!("{FOLDER}/oxccl"), &parts.tool);
    tree.link("usr/bin/oxccl", "../lib/oxccl/oxccl");
    tree.text(format!("{INCLUDE}/nccl.h"), &parts.header);
    let text = pkgconfig::text("/usr", &format!("/{FOLDER}"), &format!("/{INCLUDE}"), VERSION);
    tree.file(format!("usr/lib/{triplet}/pkgconfig/oxccl.pc"), text.into_bytes());
    tree.file(format!("{DOCS}/copyright"), copyright().into_bytes());
    tree.text(format!("{DOCS}/BUILD"), &parts.facts);
    tree.text(format!("{DOCS}/THIRD-PARTY"), &parts.notices);
    for (name, contents) in documents()? {
        tree.file(format!("{DOCS}/{name}"), contents);
    }
    let mut control = Tree::default();
    let text = control_text(machine, parts, tree.kib());
    control.file("control", text.into_bytes());
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.xz", archive::xz(&archive::tar(&control, parts.time)?)?),
        ("data.tar.xz", archive::xz(&archive::tar(&tree, parts.time)?)?),
    ];
    let mut builder = Builder::new(Vec::new());
    for (name, contents) in members {
        let mut header = Header::new(name.into(), contents.len() as u64);
        header.set_mtime(parts.time);
        header.set_mode(0o100_644);
        builder.append(&header, &contents[..])?;
    }
    Ok((format!("oxccl_{VERSION}-{REVISION}_{machine}.deb"), builder.into_inner()?))
}

fn control_text(machine: &str, parts: &Parts, kib: u64) -> String {
    let (major, minor) = parts.glibc;
    format!(
        "Package: oxccl\nVersion: {VERSION}-{REVISION}\nArchitecture: {machine}\nMaintainer: {}\n\
         Section: libs\nPriority: optional\nInstalled-Size: {kib}\n\
         Depends: libc6 (>= {major}.{minor}), libgcc-s1\n\
         Description: collective communication between GPUs and CPUs, with NCCL's C interface\n \
         A shared library libnccl.so.2, its GPU kernels, a C header, a network plugin for NCCL's own\n \
         library, and the tool oxccl, which measures collectives and shows a machine's topology. Everything lies in /usr/lib/oxccl, beside whatever NCCL\n \
         is installed: a program runs on it if it was linked by `pkg-config oxccl`, or with\n \
         LD_PRELOAD=/usr/lib/oxccl/libnccl.so.2.\n",
        env!("CARGO_PKG_AUTHORS"),
    )
}

fn copyright() -> String {
    let authors = env!("CARGO_PKG_AUTHORS");
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: OxCCL\n\n\
         Files: *\nCopyright: {authors}\nLicense: Apache-2.0 or MIT\n \
         The texts are in LICENSE-APACHE and LICENSE-MIT, those of the crates in library, plugin and tool in THIRD-PARTY.\n"
    )
}
