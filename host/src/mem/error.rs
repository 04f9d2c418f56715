//! Memory errors, with advice for the user.

use crate::os::NoDescriptor;
use oxccl_shared::abi::Rank;
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why an allocation failed. Only communicator creation allocates.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemError {
    /// The kernel granted no address space or memory.
    #[error(
        "this process got no {wanted_bytes} bytes of memory from the kernel: {errno}; check ulimit -v and the memory limit of the container"
    )]
    Map {
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Error of `mmap`.
        errno: Errno,
    },
    /// The shared memory file system has too little space for the file.
    #[error(
        "shared memory is full: {} needs {wanted_bytes} bytes, {free_bytes} are free; \
         enlarge it (docker run --shm-size=1g, or a larger emptyDir with medium Memory at /dev/shm) \
         or make connections smaller (NCCL_BUFFSIZE) or do without it (NCCL_SHM_DISABLE=1)", path.display()
    )]
    ShmFull {
        /// The file that could not be created.
        path: PathBuf,
        /// Bytes it needs.
        wanted_bytes: u64,
        /// Bytes available to this user in the file system.
        free_bytes: u64,
    },
    /// A live process of this user has already created a file of this name.
    #[error("{} belongs to a live process of this user", path.display())]
    ShmInUse {
        /// The file.
        path: PathBuf,
    },
    /// Another user has created a file of this name.
    #[error(
        "{} is taken by user {owner} of this host, who has no business there; NCCL_SHM_DISABLE=1 does without shared memory", path.display()
    )]
    ShmTaken {
        /// The file.
        path: PathBuf,
        /// The numeric id of the user.
        owner: u32,
    },
    /// The process may not make files of this length.
    #[error(
        "{} needs {wanted_bytes} bytes, and a file of this process may have {limit_bytes} (RLIMIT_FSIZE); raise the limit (ulimit -f, \
         LimitFSIZE= of a systemd unit) or make connections smaller (NCCL_BUFFSIZE) or do without shared memory (NCCL_SHM_DISABLE=1)",
        path.display()
    )]
    ShmLimit {
        /// The file.
        path: PathBuf,
        /// Bytes it needs.
        wanted_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A peer's file differs from what that peer should have created.
    #[error("{}: {property} is {found:#x}, expected {expected:#x}; not a file of this communicator's rank, or of another OxCCL version", path.display())]
    ShmForeign {
        /// The file.
        path: PathBuf,
        /// The property that differs.
        property: ShmProperty,
        /// The value this rank expects.
        expected: u64,
        /// The value the file has.
        found: u64,
    },
    /// This process cannot open one more file.
    #[error("{call} {}: {why}", path.display())]
    NoDescriptor {
        /// The system call.
        call: &'static str,
        /// The file it was made for.
        path: PathBuf,
        /// The exhausted limit, and advice.
        why: NoDescriptor,
    },
    /// Another failure of the operating system.
    #[error("{call} {}: {errno}{}; NCCL_SHM_DISABLE=1 does without shared memory", path.display(), whose(*.errno))]
    Shm {
        /// The system call.
        call: &'static str,
        /// The file it was made for.
        path: PathBuf,
        /// Its error.
        errno: Errno,
    },
    /// Two threads of this process joined one communicator as the same rank.
    #[error("rank {rank} of communicator {comm_hash:#018x} was created twice in this process")]
    PublishedTwice {
        /// The communicator.
        comm_hash: u64,
        /// The rank.
        rank: Rank,
    },
}

/// Why a file of a rank that says that it made it is not there.
fn whose(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => {
            " (files are of a user and of a /dev/shm; do both ranks run as one user and see the same one?)"
        }
        _ => "",
    }
}

impl MemError {
    /// A failed system call on a file of shared memory.
    pub(super) fn of_file(call: &'static str, path: &Path, errno: Errno) -> MemError {
        let path = path.to_owned();
        match NoDescriptor::of(&errno.into()) {
            Some(why) => MemError::NoDescriptor { call, path, why },
            None => MemError::Shm { call, path, errno },
        }
    }
}

/// A property that an opener checks before it trusts a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShmProperty {
    /// The owner's user id.
    Owner,
    /// File type and permission bits.
    Mode,
    /// Number of names: nobody else may have one.
    Links,
    /// Length of the file in bytes.
    FileLength,
    /// The word that marks OxCCL's files.
    Magic,
    /// Version of the header's layout.
    Version,
    /// Usable bytes, as the header states them.
    Length,
    /// The number that distinguishes it from all other files.
    Token,
    /// The creator's rank.
    Rank,
}

impl fmt::Display for ShmProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ShmProperty::Owner => "owner",
            ShmProperty::Mode => "mode",
            ShmProperty::Links => "number of links",
            ShmProperty::FileLength => "file length",
            ShmProperty::Magic => "magic word",
            ShmProperty::Version => "layout version",
            ShmProperty::Length => "stated length",
            ShmProperty::Token => "token",
            ShmProperty::Rank => "rank",
        })
    }
}
