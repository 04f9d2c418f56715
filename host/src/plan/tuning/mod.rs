//! Layer: host / plan / tuning, the choice of algorithm and protocol.
//! Takes: a call, the machine's speeds, the user's restrictions, and measured tables.
//! Gives: a [`Choice`] of algorithm and protocol, and an [`Explanation`] of it; the same on every rank.
//! Never: I/O, a clock, unsafe code. The API reads tuning files: this module parses their text.
//!
//! The first policy with an answer decides: the user's restrictions leave some candidates; of those a tuner plugin names one, if there is
//! a plugin; a table measured on this machine (`oxccl tune`) names one; then a built-in table measured on machines of this
//! kind; then the model of latency and bandwidth.

mod candidate;
mod restrict;
mod machine;
mod constants;
mod model;
mod table;
mod file;
mod choose;
mod explain;
#[cfg(test)]
pub(crate) mod tests;

pub use candidate::{Candidate, Candidates};
pub use choose::{Advice, Choice, Measured, Reason, Scope, choose};
pub use constants::{Architecture, Constants};
pub use explain::{Exclusion, Explanation, Line};
pub use file::{TuneFile, TuneFileError, TuneHead, TuneRecord, TuneSection};
pub use machine::{Crossing, Machine, NetSpeed, Pairs, Speeds};
pub use model::{Estimate, channels, estimate};
pub use restrict::{Forced, Impossible, ListError};
pub use table::{Backend, TUNED, TuneRow, TuneTable};
