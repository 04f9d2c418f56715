//! Layer: host / plan.
//! Takes: a call and the communicator's facts.
//! Gives: a [`Plan`]: algorithm, protocol, channels, chunk sizes; for sends and receives on GPUs the launches and lanes. The same on
//! every rank for the same call.
//! Never: I/O, a clock, unsafe code, memory, a device. With different plans, ranks would wait for each other's slots in
//! different buffers.
//!
//! One planner for all processors. What there is, it takes from the registry (`shared/src/algo/registry.rs`); what was measured, from
//! the table of the kind of processors (`numbers`).

mod call;
mod copy_engines;
pub mod tuning;
mod collnet;
mod numbers;
mod count;
mod hosts;
mod facts;
mod check;
mod choose;
mod collective;
mod messages;
mod nics;
mod symmetric;
mod kernel_set;
#[cfg(test)]
pub(crate) mod tests;

pub use call::{Call, CallRecord};
pub use check::Lacks;
pub use collective::{CallPlan, Plan, plan};
pub use collnet::{Collnet, CollnetFacts, Reduces};
pub use copy_engines::{CopyStep, CtaPolicy, Placement, Said, Spot, Step, WindowRow, steps, touched_buffer};
pub use facts::Facts;
pub use hosts::Hosts;
pub use messages::{Arrangement, Batch, MessageWant, Placed, arrange, message_connections, message_kernels};
pub use nics::Nics;
pub use numbers::{Blocks, ChannelLimits, HopLimit, MessageClass, Tuning};
pub(crate) use numbers::{FAR_CHANNELS_MAX, HEADED_CHANNELS_MAX};
pub use symmetric::{SymmetricPlan, copying_kernel};
pub use tuning::Forced;

use oxccl_shared::abi::Func;
use tuning::{Backend, Candidates, TuneFile, TuneFileError};

/// Candidates of a function on a backend, if everything were connected.
pub fn offered(backend: Backend, func: Func) -> Candidates {
    Candidates::offered(func, backend.processor())
}

/// Parses a tuning file.
///
/// # Errors
/// The first mistake, with its line and field.
pub fn read_tune_file(text: &str) -> Result<TuneFile, TuneFileError> {
    TuneFile::parse(text, offered)
}
