//! The Python wheel: the library as a file of a package without compiled modules, so that one wheel fits every Python 3.

use super::parts::{Parts, VERSION, documents};
use super::tree::{BUNDLE, Node, PLUGIN, SONAME, Tree};
use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use std::env::consts::ARCH;
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

const INIT: &str = include_str!("python/__init__.py");
const MAIN: &str = include_str!("python/__main__.py");

/// File name and contents.
pub fn pack(parts: &Parts) -> Result<(String, Vec<u8>)> {
    let (major, minor) = parts.glibc;
    // What pip compares with its machine's glibc.
    let tag = format!("py3-none-manylinux_{major}_{minor}_{ARCH}");
    let info = format!("oxccl-{VERSION}.dist-info");
    let mut tree = Tree::default();
    tree.text("oxccl/__init__.py", INIT);
    tree.text("oxccl/__main__.py", MAIN);
    let build = format!("__version__ = \"{VERSION}\"\nNCCL_VERSION = \"{}\"\n", parts.nccl);
    tree.file("oxccl/_build.py", build.into_bytes());
    // Wheels have no links; this name is the one that the loader is asked for.
    tree.file(format!("oxccl/lib/{SONAME}"), &parts.library);
    tree.file(format!("oxccl/lib/{PLUGIN}"), &parts.plugin);
    tree.file(format!("oxccl/lib/{BUNDLE}"), &parts.bundle);
    tree.program("oxccl/bin/oxccl", &parts.tool);
    tree.text("oxccl/include/nccl.h", &parts.header);
    tree.text("oxccl/BUILD", &parts.facts);
    for (name, contents) in documents()?.into_iter().filter(|(name, _)| name.starts_with("LICENSE")) {
        tree.file(format!("{info}/licenses/{name}"), contents);
    }
    tree.text(format!("{info}/licenses/THIRD-PARTY"), &parts.notices);
    tree.file(format!("{info}/METADATA"), metadata().into_bytes());
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: cargo xtask package {VERSION}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    tree.file(format!("{info}/WHEEL"), wheel.into_bytes());
    tree.text(format!("{info}/entry_points.txt"), "[console_scripts]\noxccl = oxccl.__main__:main\n");
    let record = record(&tree, &format!("{info}/RECORD"));
    let contents = zipped(&tree, &format!("{info}/RECORD"), &record)?;
    Ok((format!("oxccl-{VERSION}-{tag}.whl"), contents))
}

fn metadata() -> String {
    format!(
        "Metadata-Version: 2.4\nName: oxccl\nVersion: {VERSION}\n\
         Summary: Collective communication in NCCL's place: libnccl.so.2 for PyTorch and others\n\
         Author: {}\nLicense-Expression: Apache-2.0 OR MIT\n\
         License-File: LICENSE-APACHE\nLicense-File: LICENSE-MIT\nLicense-File: THIRD-PARTY\n\
         Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n\
         `python -m oxccl run train.py` runs a program on OxCCL instead of NCCL; `oxccl.library_path()` names the library,\n\
         and `python -m oxccl topo` or `perf` is the tool.\n",
        env!("CARGO_PKG_AUTHORS")
    )
}

/// The list of files with their hashes, which pip compares; of itself it has the name alone.
fn record(tree: &Tree, own: &str) -> String {
    let line = |(path, node): (&String, &Node)| match node {
        Node::File { contents, .. } => {
            let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(contents));
            format!("{path},sha256={hash},{}\n", contents.len())
        }
        Node::Link(_) => String::new(),
    };
    tree.0.iter().map(line).chain([format!("{own},,\n")]).collect()
}

/// The record comes last, as installers like it.
fn zipped(tree: &Tree, own: &str, record: &str) -> Result<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(DateTime::default());
    for (path, node) in &tree.0 {
        if let Node::File { contents, is_program } = node {
            let mode = if *is_program { 0o755 } else { 0o644 };
            zip.start_file(path, options.unix_permissions(mode))?;
            zip.write_all(contents)?;
        }
    }
    zip.start_file(own, options.unix_permissions(0o644))?;
    zip.write_all(record.as_bytes())?;
    Ok(zip.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_has_hashes_as_pip_reads_them() {
        let mut tree = Tree::default();
        tree.text("a/b.py", "");
        let text = record(&tree, "x.dist-info/RECORD");
        assert_eq!(
            text,
            "a/b.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nx.dist-info/RECORD,,\n"
        );
        let (first, second) = (zipped(&tree, "r", &text).unwrap(), zipped(&tree, "r", &text).unwrap());
        assert_eq!(first, second);
    }
}
