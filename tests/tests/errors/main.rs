//! What is wrong is said, by name and in time: bad arguments at the call, ranks that disagree within seconds.

mod arguments;
mod mismatch;
mod silence;
