//! Who sets up memory together, and how they vote.

use super::error::P2pError;
use crate::bootstrap::{Agreement, Bootstrap, BootstrapError};

/// Ranks that set up memory together: all of a communicator at init, later those that a connection concerns.
pub(crate) trait Circle {
    /// Every member learns whether every member succeeded, and what it says. Blocks are by rank; those of ranks that are no members are
    /// empty.
    ///
    /// # Errors
    /// A member was lost.
    fn agree(&self, mine: Result<&[u8], &P2pError>) -> Result<Agreement, BootstrapError>;

    /// The other members learn that this one gives up.
    fn abort(&self, reason: &str);

    /// An error if a member is known to be lost, or to have given up.
    ///
    /// # Errors
    /// Which, and why.
    fn check_whole(&self) -> Result<(), BootstrapError>;
}

impl Circle for Bootstrap {
    fn agree(&self, mine: Result<&[u8], &P2pError>) -> Result<Agreement, BootstrapError> {
        self.agree_or_retry(mine, P2pError::allows_retry)
    }

    fn abort(&self, reason: &str) {
        Bootstrap::abort(self, reason);
    }

    fn check_whole(&self) -> Result<(), BootstrapError> {
        Bootstrap::check_whole(self)
    }
}
