//! Why there are no channels.

use crate::topology::{AgreeError, MergeError, SystemError, XmlError};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What went wrong between looking at machines and having channels.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SurveyError {
    /// A file that the user names cannot be used.
    #[error("rank {rank}: {variable}={}: {why}", path.display())]
    File {
        /// Whose file.
        rank: u32,
        /// The variable that names it.
        variable: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        why: Box<FileError>,
    },
    /// What the user's file describes is no machine of these ranks.
    #[error("rank {rank}: NCCL_TOPO_FILE={}: {source}", path.display())]
    System {
        /// Whose file.
        rank: u32,
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<SystemError>,
    },
    /// A rank sees another machine than those of its host before it.
    #[error("rank {peer} sees another machine than rank {first}, which is on the same host: {source}")]
    Contradiction {
        /// The host's first rank.
        first: u32,
        /// The one that contradicts those before it.
        peer: u32,
        /// In what.
        source: MergeError,
    },
    /// A rank's description of its host cannot be read.
    #[error("rank {peer} sent a malformed description of its host; do all ranks run the same OxCCL?")]
    Malformed {
        /// Who sent it.
        peer: u32,
    },
    /// Ranks found different channels.
    #[error(transparent)]
    Agree(#[from] AgreeError),
}

/// Why a file cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FileError {
    /// The system refuses it.
    #[error("{0}")]
    Io(String),
    /// Its contents.
    #[error(transparent)]
    Xml(#[from] XmlError),
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> FileError {
        FileError::Io(error.to_string())
    }
}

impl SurveyError {
    pub(super) fn file(rank: u32, variable: &'static str, path: &Path, why: FileError) -> SurveyError {
        SurveyError::File { rank, variable, path: path.to_owned(), why: Box::new(why) }
    }
}
