//! Why a call cannot have the algorithms that it asks for.

use crate::plan::tuning::{Candidates, ListError};
use oxccl_shared::abi::Func;
use thiserror::Error;

/// Why a call cannot have the algorithms that were asked for.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SelectionError {
    /// It is no list of algorithms.
    #[error("\"{text}\" selects no algorithm: {why}")]
    List {
        /// What was given.
        text: String,
        /// What was expected.
        why: ListError,
    },
    /// The function has one way only.
    #[error("\"{text}\": {func} is made of messages and has no algorithms to select from")]
    Messages {
        /// What was given.
        text: String,
        /// The function.
        func: Func,
    },
    /// Nothing that was named is there.
    #[error(
        "\"{text}\" leaves no algorithm for this {func}: possible are {possible} (what NCCL_ALGO does not name when the communicator is \
         made may not be connected)"
    )]
    Nothing {
        /// What was given.
        text: String,
        /// The function.
        func: Func,
        /// What there is.
        possible: Candidates,
    },
}
