//! Votes: steps that all ranks take or none does.

use super::ConnectError;
use crate::bootstrap::{Agreement, Bootstrap};

/// Every rank learns whether every rank succeeded, and what it says.
///
/// # Errors
/// This rank's own, or [`ConnectError::PeerFailed`] with the first rank that failed.
pub(super) fn agree(
    bootstrap: &Bootstrap,
    mine: Result<Vec<u8>, ConnectError>,
) -> Result<Vec<Vec<u8>>, ConnectError> {
    let agreed = bootstrap.agree(mine.as_ref().map(|bytes| &bytes[..]))?;
    mine?;
    match agreed {
        Agreement::All(blocks) => Ok(blocks),
        Agreement::Failed { peer, why, .. } => Err(ConnectError::PeerFailed { peer, why }),
    }
}
