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
    let names: Vec<&str> = names.lines().collect();
    let twins = names.iter().filter(|name| **name != WITHOUT_TWIN).map(|name| format!("p{name}"));
    names.iter().map(|name| String::from(*name)).chain(twins).collect()
}

#[test]
fn every_name_of_nccl_is_exported_and_nothing_else() {
    let (exported, wanted) = (exported(), wanted());
    let (missing, more) =
        (wanted.difference(&exported).collect::<Vec<_>>(), exported.difference(&wanted).collect::<Vec<_>>());
    assert!(missing.is_empty() && more.is_empty(), "missing: {missing:?}, more: {more:?}");
    assert_eq!(exported.len(), 193);
}

#[test]
fn the_loader_knows_it_as_nccl_2_and_never_unloads_it() {
    let dynamic = tool("readelf", &["-d"]);
    assert!(dynamic.contains("Library soname: [libnccl.so.2]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    assert!(!dynamic.contains("libcuda"), "a machine without a driver could not load it: {dynamic}");
}
