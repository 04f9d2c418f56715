//! What distinguishes a call from others of its kind for the program that made it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a program can tell a call by, beside what all ranks know of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Mark {
    /// What the caller has said by [`CommHandle::tag`](crate::CommHandle::tag) before it; 0: nothing.
    pub tag: u64,
    /// The stream that it was enqueued on, as the driver calls it; 0: none, or the default one.
    pub stream: u64,
}

impl Mark {
    /// The tag, if the caller has given one.
    pub fn tag(self) -> Option<u64> {
        (self.tag != 0).then_some(self.tag)
    }

    /// The stream, if it is known.
    pub fn stream(self) -> Option<u64> {
        (self.stream != 0).then_some(self.stream)
    }
}

/// As it follows an operation in a sentence.
impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.tag(), self.stream()) {
            (None, None) => Ok(()),
            (Some(tag), None) => write!(f, " [tag {tag}]"),
            (None, Some(stream)) => write!(f, " [stream {stream:#x}]"),
            (Some(tag), Some(stream)) => write!(f, " [tag {tag}, stream {stream:#x}]"),
        }
    }
}
