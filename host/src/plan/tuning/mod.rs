//! Layer: host / plan / tuning, what a plan is chosen by.
//! Takes: a call, the machine's speeds, what the user restricts, and tables that were measured.
//! Gives: a [`Choice`] of algorithm and protocol, and an [`Explanation`] of it; the same on every rank.
//! Never: I/O, a clock, unsafe code. Reading a tuning file is the API's: here is only what its text means.
//!
//! Four voices, the first that has something to say about a call decides: what the user restricts leaves some candidates; of those a
//! table that was measured on this machine (`oxccl tune`) names one; then a table that was measured on machines of this kind and is
//! built in; then the model of latency and bandwidth.

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
pub use choose::{Choice, Measured, Reason, Scope, choose};
pub use constants::{Architecture, Constants};
pub use explain::{Exclusion, Explanation, Line};
pub use file::{TuneFile, TuneFileError, TuneHead, TuneRecord, TuneSection};
pub use machine::{Machine, NetSpeed, Pairs, Speeds};
pub use model::{Estimate, channels, estimate};
pub use restrict::{Forced, Impossible, ListError};
pub use table::{Backend, TUNED, TuneRow, TuneTable};
