//! Why the survey found no channels.

use crate::topology::{AgreeError, MergeError, SystemError, XmlError};
use oxccl_shared::abi::Rank;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// An error between detection and channels.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SurveyError {
    /// A file that the user names is unusable.
    #[error("rank {rank}: {variable}={}: {why}", path.display())]
    File {
        /// The rank of the file.
        rank: Rank,
        /// The variable that names it.
        variable: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        why: Box<FileError>,
    },
    /// The user's file describes no machine of these ranks.
    #[error("rank {rank}: NCCL_TOPO_FILE={}: {source}", path.display())]
    System {
        /// The rank of the file.
        rank: Rank,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<SystemError>,
    },
    /// A rank sees another machine than the previous ranks of its host.
    #[error("rank {peer} sees another machine than rank {first}, which is on the same host: {source}")]
    Contradiction {
        /// The host's first rank.
        first: Rank,
        /// The one that contradicts those before it.
        peer: Rank,
        /// The contradiction.
        source: MergeError,
    },
    /// A rank's view of its host is malformed.
    #[error("rank {peer} sent a malformed description of its host; do all ranks run the same OxCCL?")]
    Malformed {
        /// Its sender.
        peer: Rank,
    },
    /// Ranks found different channels.
    #[error(transparent)]
    Agree(#[from] AgreeError),
}

/// Why a file is unusable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{0}")]
    Io(String),
    /// Its contents.
    #[error(transparent)]
    Xml(#[from] XmlError),
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> FileError {
        FileError::Io(crate::os::describe(&error))
    }
}

impl SurveyError {
    pub(super) fn file(rank: Rank, variable: &'static str, path: &Path, why: FileError) -> SurveyError {
        SurveyError::File { rank, variable, path: path.to_owned(), why: Box::new(why) }
    }
}
