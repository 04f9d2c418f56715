//! Every function with what no correct program passes: an error, with a text, and no crash.

use super::programs::{compile, said};
use std::process::Command;

fn run(compiler: &str, more: &[&str]) {
    let program = compile(compiler, "hostile.c", more);
    let text = said(&Command::new(program).env("NCCL_DEBUG", "").output().unwrap());
    assert!(text.contains("every call was refused"), "{text}");
}

#[test]
fn a_c_program_is_refused() {
    run("cc", &["-std=c11"]);
}

#[test]
fn a_cpp_program_is_refused() {
    run("c++", &["-x", "c++", "-std=c++17"]);
}
