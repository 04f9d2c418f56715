//! Layer: tests.
//! Takes: /proc and /dev/shm.
//! Gives: [`Footprint`], a process's threads, descriptors and mappings of the library, and the library's orphaned
//! files.
//! Never: removes anything.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// Where the library's files are, and how all of their names begin.
const SHM_DIR: &str = "/dev/shm";
const PREFIX: &str = "oxccl-";

/// What this process holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// Names of its threads, sorted.
    pub threads: Vec<String>,
    /// Its open descriptors.
    pub descriptors: usize,
    /// Its mappings of the library's files.
    pub mappings: usize,
}

impl Footprint {
    /// What this process holds now.
    pub fn take() -> Footprint {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut threads: Vec<String> = entries("/proc/self/task")
            .filter_map(|task| std::fs::read_to_string(task.join("comm")).ok())
            .map(|name| name.trim().to_owned())
            .collect();
        threads.sort();
        Footprint {
            threads,
            descriptors: entries("/proc/self/fd").count(),
            mappings: maps.lines().filter(|line| line.contains("/dev/shm/oxccl-")).count(),
        }
    }

    /// Waits until the process holds again what it held when this was taken.
    ///
    /// # Errors
    /// What it holds instead after `within`.
    pub fn await_return(&self, within: Duration) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let now = Footprint::take();
            if now == *self {
                return Ok(());
            }
            if start.elapsed() > within {
                return Err(format!("{self:?} was held at first, {now:?} is held now"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn entries(dir: &str) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The library's files in /dev/shm whose creators are dead: the kernel has freed their locks.
fn ownerless() -> BTreeSet<PathBuf> {
    let me = rustix::process::geteuid().as_raw();
    // Another user's file of such a name is a stranger's.
    let is_ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
            && rustix::fs::lstat(path).is_ok_and(|stat| stat.st_uid == me)
    };
    let is_free = |path: &PathBuf| {
        let Ok(fd) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
            return false;
        };
        // Shared, so that a concurrent sweep is not misled; freed again at once.
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared).is_ok()
    };
    entries(SHM_DIR).filter(is_ours).filter(is_free).collect()
}

/// Waits until no file made since `start` is without an owner. Files of others' crashes before that are not ours to judge.
///
/// # Panics
/// If some are left after `within`.
pub fn assert_no_files_left(start: SystemTime, within: Duration) {
    let is_new = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).is_ok_and(|made| made >= start);
    let deadline = Instant::now() + within;
    loop {
        let left: Vec<PathBuf> = ownerless().into_iter().filter(is_new).collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left behind in shared memory: {left:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
