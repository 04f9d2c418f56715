//! The tarball: one folder that works wherever it lies.

use super::archive;
use super::parts::{Parts, VERSION, documents};
use super::pkgconfig;
use super::tree::{BUNDLE, PLUGIN, Tree};
use anyhow::Result;
use std::env::consts::{ARCH, OS};

/// File name and contents.
pub fn pack(parts: &Parts) -> Result<(String, Vec<u8>)> {
    let top = format!("oxccl-{VERSION}-{ARCH}-{OS}");
    let mut tree = Tree::default();
    tree.program(format!("{top}/bin/oxccl"), &parts.tool);
    tree.library(&format!("{top}/lib"), &parts.nccl, &parts.library);
    tree.file(format!("{top}/lib/{PLUGIN}"), &parts.plugin);
    tree.file(format!("{top}/lib/{BUNDLE}"), &parts.bundle);
    tree.text(format!("{top}/include/nccl.h"), &parts.header);
    // Two folders above the file: the tarball may be unpacked, and moved, anywhere.
    let text = pkgconfig::text("${pcfiledir}/../..", "${prefix}/lib", "${prefix}/include", VERSION);
    tree.file(format!("{top}/lib/pkgconfig/oxccl.pc"), text.into_bytes());
    tree.text(format!("{top}/share/doc/oxccl/BUILD"), &parts.facts);
    tree.text(format!("{top}/share/doc/oxccl/THIRD-PARTY"), &parts.notices);
    for (name, contents) in documents()? {
        tree.file(format!("{top}/share/doc/oxccl/{name}"), contents);
    }
    Ok((format!("{top}.tar.xz"), archive::xz(&archive::tar(&tree, parts.time)?)?))
}
