//! Our header against NCCL's own: the same programs say the same of both.

use super::programs::{said, scratch, source};
use std::path::PathBuf;
use std::process::Command;

fn ours() -> Vec<PathBuf> {
    vec![source("include")]
}

fn theirs() -> Vec<PathBuf> {
    vec![source("tests/reference"), source("tests/reference/stubs")]
}

/// What a program says that was compiled with the header in these folders. Only its text counts, so that nothing is called.
fn says(compiler: &str, file: &str, name: &str, folders: &[PathBuf]) -> String {
    let program = scratch(&format!("header-{file}-{name}")).join("program");
    // The types of functions need none of them.
    let mut command = Command::new(compiler);
    command
        .args(["-O1", "-DNCCL_OS_LINUX", "-Wl,--unresolved-symbols=ignore-all", "-no-pie", "-o"])
        .arg(&program);
    for folder in folders {
        command.arg("-I").arg(folder);
    }
    let output = command.arg(source("tests/c").join(file)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    said(&Command::new(program).output().unwrap())
}

fn compare(compiler: &str, file: &str, lines_min: usize) {
    let (ours, theirs) = (says(compiler, file, "ours", &ours()), says(compiler, file, "theirs", &theirs()));
    assert!(ours.lines().count() >= lines_min, "{ours}");
    for (our, their) in ours.lines().zip(theirs.lines()) {
        assert_eq!(our, their);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn structures_numbers_and_initialisers_are_nccls() {
    compare("cc", "layout.c", 150);
}

#[test]
fn functions_have_nccls_types() {
    compare("c++", "prototypes.cpp", 140);
}
