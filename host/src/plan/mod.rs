//! Layer: host / plan.
//! Takes: a call and the communicator's facts.
//! Gives: a [`Plan`]: algorithm, protocol, channels, chunk sizes; the same on every rank for the same call.
//! Never: I/O, a clock, unsafe code, memory. With different plans, ranks would wait for each other's slots in
//! different buffers.

mod call;
pub mod tuning;
mod collnet;
mod choose;
mod collective;
pub mod device;
#[cfg(test)]
mod tests;

pub use call::{Call, CallRecord};
pub use choose::{Facts, Tuning};
pub use collective::{Plan, plan};
pub use collnet::{Collnet, CollnetFacts, Reduces};
pub use tuning::Forced;

use oxccl_shared::abi::Func;
use tuning::{Backend, Candidates, TuneFile, TuneFileError};

/// Candidates of a function on a backend, if everything were connected.
pub fn offered(backend: Backend, func: Func) -> Candidates {
    match backend {
        Backend::Cpu | Backend::CpuStreams => choose::offered(func),
        Backend::Gpu => device::KernelId::offered(func),
    }
}

/// Parses a tuning file.
///
/// # Errors
/// The first mistake, with its line and field.
pub fn read_tune_file(text: &str) -> Result<TuneFile, TuneFileError> {
    TuneFile::parse(text, offered)
}
