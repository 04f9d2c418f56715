//! C and C++ programs, compiled here against our header and linked with our library.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder with the library under the name that programs ask for.
pub fn library_folder() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        // Cargo builds a package's library before its tests, beside their programs.
        let programs = std::env::current_exe().unwrap();
        let built = programs.parent().unwrap().join("libnccl.so");
        assert!(built.exists(), "{} is not there", built.display());
        let folder = scratch(&format!("library-{}", std::process::id()));
        std::os::unix::fs::symlink(&built, folder.join("libnccl.so.2")).unwrap();
        folder
    })
}

/// An empty folder of this name.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A file of this package.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compiles `tests/c/<file>` and links it with the library. Warnings are errors.
pub fn compile(compiler: &str, file: &str, more: &[&str]) -> PathBuf {
    let folder = library_folder();
    let library = folder.join("libnccl.so.2").display().to_string();
    compile_with(compiler, file, more, &["-x", "none", &library, &format!("-Wl,-rpath,{}", folder.display())])
}

/// Compiles a program that loads the library itself.
pub fn compile_without_library(compiler: &str, file: &str, more: &[&str]) -> PathBuf {
    compile_with(compiler, file, more, &[])
}

fn compile_with(compiler: &str, file: &str, more: &[&str], libraries: &[&str]) -> PathBuf {
    let program = scratch(&format!("{file}-{compiler}-{}", std::process::id())).join("program");
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(source("include"))
        .args(more)
        .arg(source("tests/c").join(file))
        .args(libraries)
        .arg("-ldl")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// What a program said, once it has ended well.
pub fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{text}\n{errors}", output.status);
    text
}
