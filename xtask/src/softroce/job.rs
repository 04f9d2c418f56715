//! A guest's work, and its result.

use std::path::PathBuf;
use std::time::Duration;

/// A program and its arguments.
pub struct Run {
    pub program: PathBuf,
    pub args: Vec<String>,
}

/// What a guest is to do.
#[derive(Default)]
pub struct Job {
    /// One after the other, as long as they succeed.
    pub runs: Vec<Run>,
    pub envs: Vec<(String, String)>,
    /// Files for the guest beside the program, at their own paths.
    pub files: Vec<PathBuf>,
    pub memory_mb: u32,
    pub limit: Duration,
}

/// How a job ended.
pub struct Ended {
    /// As a shell says it: 128 and the number for a signal.
    pub status: u8,
    /// From QEMU's start to its end.
    pub took: Duration,
    /// What the guest wrote.
    pub text: String,
}
