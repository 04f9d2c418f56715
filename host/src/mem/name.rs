//! Names of shared segments.
//!
//! A name cannot be guessed: it is a digest of a random number that its creator has told the ranks of its communicator, and nobody
//! else, over the bootstrap. Another user of the machine can therefore neither take a name before its creator comes, nor tell from
//! one file of a job how its other files will be called. The ranks know all names before any file is made, so after a failed start a
//! survivor can remove the files of all ranks of its host without further messages from them.

use oxccl_shared::abi::Rank;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Directory of shared segments.
pub(super) const SHM_DIR: &str = "/dev/shm";

/// The file of one rank's segment: `/dev/shm/oxccl-<uid>-<token>-<rank>`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShmName {
    path: PathBuf,
    token: u64,
    rank: Rank,
}

impl ShmName {
    /// The file that `rank` makes for `purpose`, for this process's effective user. `told` is the random number that `rank` told the
    /// others; a name shows neither it nor the rank's other names.
    pub fn of(told: u64, purpose: u64, rank: Rank) -> Self {
        let mut hash = Sha256::new();
        for word in [told, purpose, rank.0.into()] {
            hash.update(word.to_le_bytes());
        }
        let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
        Self::in_dir(Path::new(SHM_DIR), u64::from_le_bytes([a, b, c, d, e, f, g, h]), rank)
    }

    /// The file with this token in a given directory.
    pub fn in_dir(dir: &Path, token: u64, rank: Rank) -> Self {
        let path = dir.join(format!("{}{token:016x}-{rank}", own_prefix()));
        ShmName { path, token, rank }
    }

    /// The whole path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What distinguishes it from all other names.
    pub fn token(&self) -> u64 {
        self.token
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

/// Removes these files after a start that failed before its barrier. Missing files and files of other
/// users are skipped. Mappings stay valid.
pub fn unlink_all(names: impl IntoIterator<Item = ShmName>) {
    for name in names {
        // A failure means that the file is gone or not ours to remove: nothing is left to do in either case.
        let _ = rustix::fs::unlink(name.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_tells_another() {
        let shown = |name: ShmName| name.token();
        let one = shown(ShmName::of(7, 1, Rank(0)));
        for other in [ShmName::of(7, 1, Rank(1)), ShmName::of(7, 2, Rank(0)), ShmName::of(8, 1, Rank(0))] {
            assert!((one ^ shown(other)).count_ones() > 8);
        }
        assert_eq!(ShmName::of(7, 1, Rank(0)), ShmName::of(7, 1, Rank(0)));
        assert!(
            !ShmName::of(0xabcd_ef01_2345_6789, 1, Rank(0))
                .path()
                .to_str()
                .unwrap()
                .contains("abcdef0123456789")
        );
    }
}
