//! Removal of files whose creators were killed.

use super::name::{SHM_DIR, own_prefix};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use std::path::Path;

/// Removes this user's shared memory files whose creators are dead; returns their number. Runs at communicator
/// creation.
///
/// Best effort: a file that cannot be read or removed stays, and is no error of the new communicator. A creator that
/// forked (for example a data loader's workers) counts as alive until the last child that inherited the lock has
/// exited.
pub fn sweep_stale() -> usize {
    sweep_dir(Path::new(SHM_DIR))
}

/// [`sweep_stale`] in another directory.
pub(super) fn sweep_dir(dir: &Path) -> usize {
    let prefix = own_prefix();
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()))
        .filter(|entry| remove_if_stale(&entry.path()))
        .count()
}

/// Removes the file if its creator is dead, that is, if its lock is free; returns whether it did.
///
/// A file is unlinked only while its lock is held and only if the name still leads to the locked inode: otherwise a
/// second sweep, late with an old descriptor, would remove a live file that has taken the name since.
pub(super) fn remove_if_stale(path: &Path) -> bool {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    let Ok(held) = rustix::fs::fstat(&fd) else { return false };
    let is_file = FileType::from_raw_mode(held.st_mode) == FileType::RegularFile;
    if !is_file || held.st_uid != rustix::process::geteuid().as_raw() {
        return false;
    }
    if rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    let Ok(named) = rustix::fs::lstat(path) else { return false };
    let is_same = (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino);
    is_same && rustix::fs::unlink(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Segment, ShmName, unlink_all};
    use oxccl_shared::abi::Rank;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    /// The directory in which [`victim`] makes its file.
    const DIR_VARIABLE: &str = "OXCCL_TEST_SWEEP_DIR";

    /// Runs only as the child of the test below: creates a segment and waits to be killed.
    #[test]
    #[ignore = "child process of a_killed_creators_file_is_swept_and_a_live_ones_is_not"]
    fn victim() {
        let Some(dir) = std::env::var_os(DIR_VARIABLE) else { return };
        let _segment = Segment::shm_create(&ShmName::in_dir(dir.as_ref(), 1, Rank(0)), 4096).unwrap();
        std::fs::write(Path::new(&dir).join("ready"), []).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_killed_creators_file_is_swept_and_a_live_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "mem::sweep::tests::victim", "--ignored"])
            .env(DIR_VARIABLE, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while !dir.path().join("ready").exists() {
            assert!(start.elapsed() < Duration::from_secs(30), "the child made no segment");
            std::thread::sleep(Duration::from_millis(5));
        }
        let name = ShmName::in_dir(dir.path(), 1, Rank(0));
        assert_eq!(sweep_dir(dir.path()), 0);
        assert!(name.path().exists(), "its creator lives");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(name.path().exists(), "a killed process cleans up nothing");
        assert_eq!(sweep_dir(dir.path()), 1);
        assert!(!name.path().exists());
        assert!(dir.path().join("ready").exists(), "other files stay");
    }

    /// Concurrent creations and sweeps: no creation may fail and no live file may vanish.
    #[test]
    fn sweeps_never_take_a_file_from_under_its_creator() {
        let dir = tempfile::tempdir_in(SHM_DIR).unwrap();
        let deadline = Instant::now() + Duration::from_millis(300);
        let running = || Instant::now() < deadline;
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let name = ShmName::in_dir(dir.path(), 1, Rank(rank));
                scope.spawn(move || {
                    while running() {
                        let (_segment, _file) = Segment::shm_create(&name, 4096).unwrap();
                        std::thread::yield_now();
                        Segment::shm_open(&name, 4096).expect("live");
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while running() {
                        sweep_dir(dir.path());
                    }
                });
            }
        });
    }

    #[test]
    fn a_survivor_removes_every_ranks_file() {
        let told = u64::from(std::process::id());
        let names = [0, 1, 2].map(|rank| ShmName::of(told, 2, Rank(rank)));
        let files = names.each_ref().map(|name| Segment::shm_create(name, 64).unwrap());
        unlink_all((0..4).map(|rank| ShmName::of(told, 2, Rank(rank))));
        assert!(names.iter().all(|name| !name.path().exists()));
        drop(files);
    }
}
