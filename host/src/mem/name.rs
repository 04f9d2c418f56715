//! Names of shared segments.
//!
//! A name depends on the communicator and the rank alone, so after a failed start a survivor can remove the files of
//! all ranks of its host without messages from them.

use oxccl_shared::abi::Rank;
use std::path::{Path, PathBuf};

/// Directory of shared segments.
pub(super) const SHM_DIR: &str = "/dev/shm";

/// The file of one rank's segment: `/dev/shm/oxccl-<uid>-<communicator hash>-<rank>`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShmName {
    path: PathBuf,
    comm_hash: u64,
    rank: Rank,
}

impl ShmName {
    /// The file of `rank` in the communicator with this hash, for this process's effective user.
    pub fn new(comm_hash: u64, rank: Rank) -> Self {
        Self::in_dir(Path::new(SHM_DIR), comm_hash, rank)
    }

    /// The same in a given directory.
    pub fn in_dir(dir: &Path, comm_hash: u64, rank: Rank) -> Self {
        let path = dir.join(format!("{}{comm_hash:016x}-{rank}", own_prefix()));
        ShmName { path, comm_hash, rank }
    }

    /// The whole path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The communicator it belongs to.
    pub fn comm_hash(&self) -> u64 {
        self.comm_hash
    }

    /// The rank that creates it.
    pub fn rank(&self) -> Rank {
        self.rank
    }
}

/// Prefix of all file names of this user.
pub(super) fn own_prefix() -> String {
    format!("oxccl-{}-", rustix::process::geteuid().as_raw())
}

/// Removes the files of these ranks after a start that failed before its barrier. Missing files and files of other
/// users are skipped. Mappings stay valid.
pub fn unlink_all(comm_hash: u64, ranks: impl IntoIterator<Item = Rank>) {
    for rank in ranks {
        // A failure means that the file is gone or not ours to remove: nothing is left to do in either case.
        let _ = rustix::fs::unlink(ShmName::new(comm_hash, rank).path());
    }
}
