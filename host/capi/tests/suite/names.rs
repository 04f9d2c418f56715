//! What the shared library exports, and how the loader knows it.

use super::programs::{library_folder, said, source};
use std::collections::BTreeSet;
use std::process::Command;

/// NCCL's internal name has no twin.
const WITHOUT_TWIN: &str = "ncclResetDebugInitInternal";

fn tool(name: &str, arguments: &[&str]) -> String {
    let library = library_folder().join("libnccl.so.2");
    said(&Command::new(name).args(arguments).arg(library).output().unwrap())
}

fn exported() -> BTreeSet<String> {
    let table = tool("nm", &["-D", "--defined-only"]);
    table.lines().filter_map(|line| line.split_whitespace().nth(2)).map(String::from).collect()
}

fn wanted() -> BTreeSet<String> {
    let names = std::fs::read_to_string(source("tests/names-2.32.3.txt")).unwrap();
    let twins = names.lines().filter(|name| *name != WITHOUT_TWIN).map(|name| format!("p{name}"));
    names.lines().map(String::from).chain(twins).collect()
}

#[test]
fn nothing_but_names_of_nccl_is_exported() {
    let (exported, wanted) = (exported(), wanted());
    let more: Vec<_> = exported.difference(&wanted).collect();
    assert!(more.is_empty(), "{more:?}");
    for name in exported.iter().filter(|name| !name.starts_with('p') && *name != WITHOUT_TWIN) {
        assert!(exported.contains(&format!("p{name}")), "{name} has no twin");
    }
}

#[test]
fn the_loader_knows_it_as_nccl_2_and_never_unloads_it() {
    let dynamic = tool("readelf", &["-d"]);
    assert!(dynamic.contains("Library soname: [libnccl.so.2]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    assert!(!dynamic.contains("libcuda"), "a machine without a driver could not load it: {dynamic}");
}
