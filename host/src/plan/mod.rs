//! Layer: host / plan.
//! Takes: a call and what was found out about the communicator at init.
//! Gives: a [`Plan`]: algorithm, protocol, channels, chunk sizes; the same on every rank for the same call.
//! Never: I/O, a clock, unsafe code, memory. The same inputs give the same plan on every rank, or ranks would wait for each
//! other's slots in different buffers.

mod call;
mod choose;
mod collective;
pub mod device;

pub use call::{Call, CallRecord};
pub use choose::{Facts, Forced, Tuning};
pub use collective::{Plan, plan};
