//! Errors name their cause, in time: invalid arguments at the call, ranks that disagree within seconds.

mod arguments;
mod mismatch;
mod panics;
mod silence;
mod finalize;
