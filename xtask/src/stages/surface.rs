//! Layer: xtask / stages.
//! Takes: the library as its users build it, and `host/public-names.txt`.
//! Gives: whether the names that a program can reach are those of the file: a change of the interface is seen where it is made.
//! Never: changes the file, unless asked (`cargo xtask public-names`).

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

const FILE: &str = "host/public-names.txt";

pub fn check() -> Result<Outcome> {
    let (is, said) = (names()?, fs::read_to_string(root().join(FILE)).context(FILE)?);
    let said: BTreeSet<String> = said.lines().map(str::to_owned).collect();
    for name in is.difference(&said) {
        beside::note(format_args!("public and not in {FILE}: {name}"));
    }
    for name in said.difference(&is) {
        beside::note(format_args!("in {FILE} and not public: {name}"));
    }
    if is != said {
        beside::note(format_args!("if that is meant: cargo xtask public-names"));
    }
    Ok(Outcome::of_check(is == said))
}

/// Writes the file.
pub fn write() -> Result<()> {
    let text: String = names()?.into_iter().map(|name| name + "\n").collect();
    Ok(fs::write(root().join(FILE), text)?)
}

/// A line for each item and re-export that a path of public modules leads to, methods not among them.
fn names() -> Result<BTreeSet<String>> {
    let target = target_dir().join("surface");
    let rustdoc = Cmd::cargo()
        .args("rustdoc --package oxccl --lib --locked -- -Z unstable-options --output-format json")
        // The list is unstable in its details; of those, paths alone are read.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", target.to_string_lossy());
    if !rustdoc.run(&root())?.success {
        bail!("the library's items could not be listed");
    }
    let list: Value = serde_json::from_slice(&fs::read(target.join("doc/oxccl.json"))?)?;
    let mut names = BTreeSet::new();
    list_module(&list["index"], &list["root"], "oxccl", &mut names)?;
    Ok(names)
}

fn list_module(index: &Value, id: &Value, path: &str, names: &mut BTreeSet<String>) -> Result<()> {
    let items = index[id.to_string()]["inner"]["module"]["items"].as_array();
    for id in items.with_context(|| format!("rustdoc lists {path} in a way that is unknown here"))? {
        let item = &index[id.to_string()];
        // What an attribute strips is not in the index.
        let Some((kind, inner)) = item["inner"].as_object().and_then(|inner| inner.iter().next()) else {
            continue;
        };
        if item["visibility"] != "public" || kind == "impl" {
            continue;
        }
        let name = item["name"].as_str().or(inner["name"].as_str()).unwrap_or_default();
        let all = if inner["is_glob"] == true { "::*" } else { "" };
        names.insert(format!("{path}::{name}{all}"));
        if kind == "module" {
            list_module(index, id, &format!("{path}::{name}"), names)?;
        }
    }
    Ok(())
}
