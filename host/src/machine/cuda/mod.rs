//! Layer: host / machine / cuda.
//! Takes: calls with device addresses, streams, the tables of a communicator's connections.
//! Gives: a [`DeviceEngine`] that puts the kernels on the streams; what stopped a kernel, as the communicator's fault.
//! Never: waits for a kernel, except when a communicator ends; chooses algorithms (`plan` did).
//!
//! From below: `driver`, NVIDIA's; `gpu`, a GPU's memory by it; `conns`, addresses; `kernels`, loaded when a communicator is made; `monitor`, the page through which kernels are stopped and
//! say why; `order`, one operation after the other; `verdict`, whose fault it is; `net`, the proxy of connections over a network, which
//! calls and graphs reach through one `door`; `engine`, with `exchange` for messages, `telling` for the proxy and `stopped` for faults.

pub mod driver;
mod gpu;
mod conns;
mod kernels;
mod monitor;
mod order;
mod verdict;
mod door;
mod net;
mod engine;
mod exchange;
mod telling;
mod stopped;

pub use conns::{ConnLists, ConnTables};
#[cfg(test)]
pub(crate) use engine::collective_args;
pub use engine::{DeviceEngine, DeviceEngineParts, EnqueueError};
pub use kernels::{DeviceKernels, KernelError};
pub use monitor::Monitor;
#[cfg(test)]
pub(crate) use net::Telling;
pub use net::{NetChannels, NetParts, NetProxy};
