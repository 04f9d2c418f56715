//! Layer: host / machine / cuda.
//! Takes: calls with device addresses, streams, the tables of a communicator's connections.
//! Gives: [`Cuda`], which puts kernels on the streams of users; what stopped a kernel, as the communicator's fault.
//! Never: waits for a kernel, except when a communicator ends; chooses algorithms (`plan` did).
//!
//! From below: `driver`, NVIDIA's; `gpu`, a GPU's memory by it; `conns`, addresses; `kernels`, loaded when a communicator is made; `monitor`, the page through which kernels are stopped and
//! say why; `order`, one operation after the other; `verdict`, whose fault it is; `net`, the proxy of connections over a network, which
//! calls and graphs reach through one `door`; `machine`, with `messages` for what goes between pairs, `telling` for the proxy and `stopped` for faults.

pub mod driver;
mod gpu;
mod conns;
mod kernels;
mod monitor;
mod order;
mod verdict;
mod door;
mod net;
mod machine;
mod messages;
mod telling;
mod stopped;
mod buffer;

pub use buffer::{DeviceSlice, DeviceSliceMut};
pub use conns::{ConnLists, ConnTables};
pub use driver::{Device, StreamRef};
pub use kernels::DeviceKernels;
#[cfg(test)]
pub(crate) use machine::collective_args;
pub use machine::{Cuda, CudaParts};
pub use monitor::Monitor;
#[cfg(test)]
pub(crate) use net::Telling;
pub use net::{NetChannels, NetParts, NetProxy};
