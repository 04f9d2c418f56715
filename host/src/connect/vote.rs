//! Votes: steps that all ranks take or none does.

use super::error::ConnectError;
use crate::bootstrap::{Agreement, Bootstrap, BootstrapError};

/// Every rank learns whether every rank succeeded, and what it says.
///
/// # Errors
/// This rank's own, or [`ConnectError::PeerFailed`] with the first rank that failed.
pub(super) fn agree(
    bootstrap: &Bootstrap,
    mine: Result<Vec<u8>, ConnectError>,
) -> Result<Vec<Vec<u8>>, ConnectError> {
    // A rank that was lost comes first: what this one failed at may follow from it.
    let agreed = bootstrap.agree(mine.as_ref().map(|bytes| &bytes[..]))?;
    mine?;
    match agreed {
        Agreement::All(blocks) => Ok(blocks),
        Agreement::Failed { peer, why, .. } => Err(ConnectError::PeerFailed { peer, why }),
    }
}

/// As [`agree`] without a message: this rank's value, if every rank succeeded.
///
/// # Errors
/// As [`agree`].
pub(super) fn vote<T>(bootstrap: &Bootstrap, mine: Result<T, ConnectError>) -> Result<T, ConnectError> {
    let said = mine.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
    agree(bootstrap, said).and(mine)
}

/// As [`vote`], after a step in which ranks wait for each other. Fail fast: abort before the vote.
///
/// # Errors
/// As [`vote`].
pub(super) fn vote_or_abort<T>(
    bootstrap: &Bootstrap,
    mine: Result<T, ConnectError>,
) -> Result<T, ConnectError> {
    match &mine {
        // An abort that another rank reported is known to the others.
        Err(ConnectError::Bootstrap(BootstrapError::PeerAborted { .. })) => mine,
        Err(error) => {
            bootstrap.abort(&error.to_string());
            mine
        }
        Ok(_) => vote(bootstrap, mine),
    }
}
