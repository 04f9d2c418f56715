//! Calls that the ranks of a communicator make together about it, such as a split.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A call that the ranks of a communicator make together, and that is none of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CommCall {
    /// A split.
    Split,
    /// A shrink, of the ranks that stay.
    Shrink,
    /// A grow.
    Grow,
    /// The orderly end.
    Finalize,
    /// A symmetric window, or memory that peers write to, is registered.
    Register,
}

impl CommCall {
    /// Its name in log lines and errors.
    pub fn name(self) -> &'static str {
        match self {
            CommCall::Split => "split",
            CommCall::Shrink => "shrink",
            CommCall::Grow => "grow",
            CommCall::Finalize => "finalize",
            CommCall::Register => "register",
        }
    }
}

impl fmt::Display for CommCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which of these calls a rank has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CommCalls {
    /// Those that it is in, of several the first two: a program may begin some at a time.
    pub now: [Option<CommCallNow>; 2],
    /// Those of all ranks that it has entered.
    pub of_all: u32,
    /// Shrinks that it has entered.
    pub shrinks: u32,
}

/// A call that a rank is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CommCallNow {
    /// Which.
    pub call: CommCall,
    /// For how long, in milliseconds.
    pub lasted_ms: u32,
    /// Whether the rank has reported that it waits.
    pub is_reported: bool,
}

impl CommCalls {
    /// The one that it has been in for longest.
    pub fn first(&self) -> Option<CommCallNow> {
        self.now[0]
    }

    /// How many it has entered of those that are counted with `call`.
    pub(super) fn entered(&self, call: CommCall) -> u32 {
        if call == CommCall::Shrink { self.shrinks } else { self.of_all }
    }
}
