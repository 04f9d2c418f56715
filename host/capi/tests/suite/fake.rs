//! A driver without GPUs under the library.

use super::programs::{library_folder, scratch};
use oxccl_tests::fake_driver::FakeDriver;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The driver, made once for all tests of this process.
pub fn driver() -> &'static FakeDriver {
    static MADE: OnceLock<FakeDriver> = OnceLock::new();
    MADE.get_or_init(|| FakeDriver::make(&scratch(&format!("driver-{}", std::process::id()))))
}

/// Runs a program over the fake driver.
pub fn run(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    driver().under(command.args(arguments));
    // Some programs load the library themselves.
    let folders = format!("{}:{}", driver().folder().display(), library_folder().display());
    command.env("LD_LIBRARY_PATH", folders).envs(environment.iter().copied()).output().unwrap()
}
