//! The file behind a shared segment, from creation to removal.

use super::error::MemError;
use super::name::ShmName;
use super::sweep::remove_if_stale;
use crate::os::with_room;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

/// Attempts to create a file that another process's sweep removes meanwhile. Each further attempt needs another
/// process to sweep within the microseconds between two of our system calls, so even a second one is improbable.
const CREATE_ATTEMPTS: usize = 16;

/// Attempts, a millisecond apart, to lock a new file.
const LOCK_ATTEMPTS: usize = 1000;

/// A linked, locked file. While this value lives, peers can open the segment and sweeps skip it. Dropping it unlinks
/// the file; memory already mapped stays.
#[derive(Debug)]
pub struct ShmFile {
    path: PathBuf,
    /// Holds the lock that marks the creator as alive.
    fd: OwnedFd,
}

impl ShmFile {
    /// Creates a file with `bytes` of reserved, zeroed space.
    pub(super) fn create(name: &ShmName, bytes: usize) -> Result<ShmFile, MemError> {
        warn_of_directory(name);
        for _ in 0..CREATE_ATTEMPTS {
            if let Some(file) = Self::create_locked(name)? {
                file.reserve(bytes as u64)?;
                return Ok(file);
            }
        }
        Err(MemError::ShmInUse { path: name.path().to_owned() })
    }

    /// The file descriptor, for mapping.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Creates and locks a file; `None` if the caller must try again.
    ///
    /// Between `open` and `flock` a sweep may take the file for a dead process's: it then holds the lock, or has
    /// unlinked the file. We wait for the lock and detect the unlink. A sweep unlinks only under the lock, so neither
    /// can happen afterwards.
    fn create_locked(name: &ShmName) -> Result<Option<ShmFile>, MemError> {
        let fail = |call, errno| MemError::of_file(call, name.path(), errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match with_room(|| rustix::fs::open(name.path(), flags, Mode::RUSR | Mode::WUSR)) {
            Ok(fd) => fd,
            Err(Errno::EXIST) => return in_use(name).map(|()| None),
            Err(errno) => return Err(fail("open", errno)),
        };
        lock(&fd).map_err(|e| fail("flock", e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| fail("fstat", e))?;
        // Create the ShmFile only now: its drop unlinks the name, and if a sweep removed the file, the name is no
        // longer ours.
        Ok((stat.st_nlink > 0).then(|| ShmFile { path: name.path().to_owned(), fd }))
    }

    /// Allocates every page now. Otherwise a full tmpfs kills the process with SIGBUS at the first access.
    fn reserve(&self, bytes: u64) -> Result<(), MemError> {
        // The kernel does not fail the call: it kills the process with SIGXFSZ.
        if let Some(limit_bytes) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < bytes) {
            return Err(MemError::ShmLimit { path: self.path.clone(), wanted_bytes: bytes, limit_bytes });
        }
        let allocate = || rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), 0, bytes);
        match rustix::io::retry_on_intr(allocate) {
            Ok(()) => Ok(()),
            Err(Errno::NOSPC | Errno::FBIG | Errno::DQUOT | Errno::NOMEM) => Err(MemError::ShmFull {
                path: self.path.clone(),
                wanted_bytes: bytes,
                free_bytes: rustix::fs::fstatvfs(&self.fd).map_or(0, |s| s.f_bavail * s.f_frsize),
            }),
            Err(errno) => Err(MemError::Shm { call: "fallocate", path: self.path.clone(), errno }),
        }
    }
}

/// Says once if other users can remove this user's files. They cannot put others in their place: an opener looks at the owner.
fn warn_of_directory(name: &ShmName) {
    static SAID: Once = Once::new();
    let Some(dir) = name.path().parent() else { return };
    let mode = rustix::fs::stat(dir).map_or(Mode::SVTX, |stat| Mode::from_raw_mode(stat.st_mode));
    if mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX) {
        SAID.call_once(|| {
            tracing::warn!(dir = %dir.display(), "every user of this host can remove files of this directory: it lacks the sticky bit (chmod +t)");
        });
    }
}

/// What a name is taken by; `Ok` if that has been removed, because its creator died.
fn in_use(name: &ShmName) -> Result<(), MemError> {
    if remove_if_stale(name.path()) {
        return Ok(());
    }
    let path = name.path().to_owned();
    match rustix::fs::lstat(&path) {
        Err(Errno::NOENT) => Ok(()),
        Ok(stat) if stat.st_uid != rustix::process::geteuid().as_raw() => {
            Err(MemError::ShmTaken { path, owner: stat.st_uid })
        }
        _ => Err(MemError::ShmInUse { path }),
    }
}

/// Locks a new file. Only a sweep can hold the lock, for the two system calls of its removal.
fn lock(fd: &OwnedFd) -> rustix::io::Result<()> {
    for _ in 0..LOCK_ATTEMPTS {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
    Err(Errno::WOULDBLOCK)
}

impl Drop for ShmFile {
    fn drop(&mut self) {
        // Already gone if a peer cleaned up after a failed start. Closing `fd` frees the lock afterwards.
        let _ = rustix::fs::unlink(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Segment, ShmProperty};
    use oxccl_shared::abi::Rank;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn foreign(result: Result<Segment, MemError>) -> ShmProperty {
        match result {
            Err(MemError::ShmForeign { property, .. }) => property,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_ends_see_one_memory_that_outlives_its_name() {
        let name = ShmName::of(std::process::id().into(), 1, Rank(0));
        let (mine, file) = Segment::shm_create(&name, 10_000).unwrap();
        let theirs = Segment::shm_open(&name, 10_000).unwrap();
        assert_ne!(mine.base(), theirs.base());
        assert_eq!(mine.base().align_offset(4096), 0);
        drop(file);
        assert!(!name.path().exists());
        // SAFETY: both mappings are 10000 bytes and this thread is their only user.
        unsafe {
            assert_eq!(*theirs.base(), 0);
            *mine.base().add(9_999) = 7;
            assert_eq!(*theirs.base().add(9_999), 7);
        }
    }

    #[test]
    fn two_live_creators_of_one_name_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let name = ShmName::in_dir(dir.path(), 1, Rank(0));
        let first = Segment::shm_create(&name, 64).unwrap();
        let second = Segment::shm_create(&name, 64).unwrap_err();
        assert_eq!(second, MemError::ShmInUse { path: name.path().to_owned() });
        drop(first);
        Segment::shm_create(&name, 64).unwrap();
    }

    /// Where this test may give a file to another user.
    #[test]
    fn a_name_that_another_user_has_taken_is_said_to_be_that_users() {
        let dir = tempfile::tempdir().unwrap();
        let name = ShmName::in_dir(dir.path(), 1, Rank(0));
        fs::write(name.path(), b"mine").unwrap();
        if std::os::unix::fs::chown(name.path(), Some(65_534), None).is_err() {
            return;
        }
        let error = Segment::shm_create(&name, 64).unwrap_err();
        assert_eq!(error, MemError::ShmTaken { path: name.path().to_owned(), owner: 65_534 });
        assert!(error.to_string().contains("user 65534"), "{error}");
        assert_eq!(fs::read(name.path()).unwrap(), b"mine");
        assert_eq!(foreign(Segment::shm_open(&name, 64)), ShmProperty::Owner);
    }

    /// The sum of header and length once wrapped: a mapping of a page that claimed to be nearly all of memory.
    #[test]
    fn a_length_beyond_all_memory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let name = ShmName::in_dir(dir.path(), 1, Rank(0));
        for len in [usize::MAX, usize::MAX - 4095, usize::MAX / 2] {
            let error = Segment::shm_create(&name, len).unwrap_err();
            assert!(
                matches!(error, MemError::Map { .. } | MemError::ShmFull { .. } | MemError::Shm { .. }),
                "{error:?}"
            );
            assert!(Segment::shm_open(&name, len).is_err());
            assert!(matches!(Segment::private(len), Err(MemError::Map { .. })));
            assert!(!name.path().exists());
        }
    }

    #[test]
    fn a_file_left_by_a_dead_creator_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let name = ShmName::in_dir(dir.path(), 1, Rank(0));
        fs::write(name.path(), b"left behind").unwrap();
        Segment::shm_create(&name, 64).unwrap();
    }

    #[test]
    fn a_full_file_system_is_an_error_now_and_names_the_remedy() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = ShmName::in_dir(dir.path(), 1, Rank(0));
        let fs = rustix::fs::statvfs(dir.path()).unwrap();
        if fs.f_blocks == 0 {
            return; // mounted without a limit
        }
        let wanted = ((fs.f_blocks + 1) * fs.f_frsize) as usize;
        let error = Segment::shm_create(&name, wanted).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, MemError::ShmFull { wanted_bytes, .. } if wanted_bytes > wanted as u64),
            "{error:?}"
        );
        for part in [name.path().to_str().unwrap(), "--shm-size", "NCCL_BUFFSIZE", "NCCL_SHM_DISABLE"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!name.path().exists(), "a failed creation leaves no file");
    }

    #[test]
    fn a_directory_that_takes_no_files_is_an_error_that_names_the_remedy() {
        let name = ShmName::in_dir(std::path::Path::new("/proc/self"), 1, Rank(0));
        let error = Segment::shm_create(&name, 64).unwrap_err();
        assert!(matches!(error, MemError::Shm { call: "open", .. }), "{error:?}");
        assert!(error.to_string().contains("NCCL_SHM_DISABLE=1"), "{error}");
    }

    #[test]
    fn an_opener_trusts_no_file_but_its_peers() {
        let dir = tempfile::tempdir().unwrap();
        let name = ShmName::in_dir(dir.path(), 1, Rank(0));
        let absent = Segment::shm_open(&name, 4096).unwrap_err();
        assert!(matches!(absent, MemError::Shm { call: "open", errno: Errno::NOENT, .. }), "{absent:?}");

        let (_segment, file) = Segment::shm_create(&name, 4096).unwrap();
        Segment::shm_open(&name, 4096).unwrap();
        assert_eq!(foreign(Segment::shm_open(&name, 8192)), ShmProperty::FileLength);
        fs::set_permissions(name.path(), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(foreign(Segment::shm_open(&name, 4096)), ShmProperty::Mode);
        fs::set_permissions(name.path(), fs::Permissions::from_mode(0o600)).unwrap();

        // Somebody else has a name of it.
        fs::hard_link(name.path(), dir.path().join("link")).unwrap();
        assert_eq!(foreign(Segment::shm_open(&name, 4096)), ShmProperty::Links);
        fs::remove_file(dir.path().join("link")).unwrap();

        // Another rank's file under this rank's name.
        let other = ShmName::in_dir(dir.path(), 1, Rank(1));
        fs::rename(name.path(), other.path()).unwrap();
        assert_eq!(foreign(Segment::shm_open(&other, 4096)), ShmProperty::Rank);
        std::os::unix::fs::symlink(other.path(), name.path()).unwrap();
        let link = Segment::shm_open(&name, 4096).unwrap_err();
        assert!(matches!(link, MemError::Shm { errno: Errno::LOOP, .. }), "{link:?}");
        drop(file);
    }
}
