//! Reads the files of `oxccl tune`.

use super::config::Config;
use crate::os::open_regular;
use crate::plan::read_tune_file;
use crate::plan::tuning::{TuneFile, TuneFileError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// The longest file that is read: hundreds of tables.
const LEN_MAX: u64 = 1 << 20;

/// Why a tuning file is unusable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TuneError {
    /// It cannot be read.
    #[error("tuning file {}: {why}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It is no tuning file.
    #[error("tuning file {}, {source}", .path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: TuneFileError,
    },
}

/// Reads the file named in the settings, unless they have its content.
pub(super) fn load(config: &mut Config) -> Result<(), TuneError> {
    if let (None, Some(path)) = (&config.tuned, &config.tune_file) {
        config.tuned = Some(Arc::new(read(path)?));
    }
    Ok(())
}

/// Reads a tuning file.
///
/// # Errors
/// [`TuneError`], which names the file and, where it is the text, line and field.
pub fn read(path: &Path) -> Result<TuneFile, TuneError> {
    let failed = |why: String| TuneError::Read { path: path.to_owned(), why };
    let file = open_regular(path).map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    let read = file.take(LEN_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > LEN_MAX {
        return Err(failed(format!("longer than {LEN_MAX} bytes, which no tuning file is")));
    }
    read_tune_file(&text).map_err(|source| TuneError::Text { path: path.to_owned(), source })
}
