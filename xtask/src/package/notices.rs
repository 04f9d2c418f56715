//! The licences of the crates in library and tool, whose texts go with every copy.

use crate::metadata::{Metadata, Package};
use crate::tools::root;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;

/// Files whose names begin like this, in a crate's folder.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];
/// What is packed.
const ROOTS: [&str; 3] = ["oxccl-nccl", "oxccl-net-plugin", "oxccl-benches"];

/// A list of crates, then each text once, with the crates that it is from.
pub fn third_party() -> Result<String> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = Metadata::read(Some(&platform))?;
    let crates = metadata.linked_into(&ROOTS);
    ensure!(crates.len() > 20, "only {} crates are linked into {ROOTS:?}", crates.len());
    let mut list = String::from(
        "The library and the tool of OxCCL contain the Rust standard library (MIT OR Apache-2.0,\n\
         https://github.com/rust-lang/rust) and these crates:\n\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in crates {
        let Package { name, version, .. } = package;
        let licence = package.license.as_deref().with_context(|| format!("{name} states no licence"))?;
        list.push_str(&format!("    {name} {version}: {licence}\n"));
        for text in texts_of(package)? {
            texts.entry(text).or_default().push(format!("{name} {version}"));
        }
    }
    // In the order of the crates that have them.
    let mut texts: Vec<(Vec<String>, String)> = texts.into_iter().map(|(text, of)| (of, text)).collect();
    texts.sort();
    for (of, text) in texts {
        list.push_str(&format!("\n{}\n{}\n\n{text}", "-".repeat(80), of.join(", ")));
    }
    Ok(list)
}

/// A crate without one is under the licences that it names; Apache's and MIT's texts are in the package.
fn texts_of(package: &Package) -> Result<Vec<String>> {
    let folder = root().join(&package.manifest_path);
    let folder = folder.parent().context("a manifest lies in a folder")?;
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    let read = |path: std::path::PathBuf| {
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        let text = String::from_utf8_lossy(&bytes).replace('\r', "");
        Ok(format!("{}\n", text.trim_end()))
    };
    files.into_iter().map(read).collect()
}
