//! Layer: host / launch / cuda.
//! Takes: calls with device addresses, streams, the tables of a communicator's connections.
//! Gives: a [`DeviceEngine`] that puts the kernels on the streams; what stopped a kernel, as the communicator's fault.
//! Never: waits for a kernel, except when a communicator ends; chooses algorithms (`plan` did).
//!
//! From below: `conns`, addresses; `kernels`, loaded when first used; `monitor`, the page through which kernels are stopped and
//! say why; `order`, one operation after the other; `engine`, with
//! `exchange` for messages and `stopped` for faults.

mod conns;
mod kernels;
mod monitor;
mod order;
mod engine;
mod exchange;
mod stopped;

pub use conns::{ConnLists, ConnTables};
pub use engine::{DeviceEngine, DeviceEngineParts, EnqueueError};
pub use kernels::{DeviceKernels, KernelError};
pub use monitor::Monitor;
