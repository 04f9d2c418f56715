//! Layer: host / machine / cuda.
//! Takes: calls with device addresses, streams, the tables of a communicator's connections.
//! Gives: [`Cuda`], which enqueues kernels on users' streams; what stopped a kernel, as the communicator's fault.
//! Never: waits for a kernel, except when a communicator ends; chooses algorithms (`plan` did).
//!
//! From below: `driver`, NVIDIA's; `gpu`, a GPU's memory; `tiles` and `clusters`, what a launch asks for besides blocks and threads;
//! `beside`, a second stream for long copies; `kernels`, loaded when a communicator is made; `monitor`, the page
//! through which kernels are stopped and say why; `order`, one operation after the other; `one_sided`, which
//! runs no kernel; `copies`, collectives by copy engines, which runs none either; `state`, what a rank consists of, from its `parts` and
//! the connections that are `connected`; `connect`, what calls need beyond these; `stopped` for faults, `issue` for the proxy's orders;
//! `collective`, `symmetric` and `messages`, what is launched, with a rank's `own`; `machine`; `buffer` and `tracked`, what users call it with.

pub mod driver;
mod gpu;
mod tiles;
mod clusters;
mod beside;
mod kernels;
mod custom;
mod monitor;
mod order;
mod one_sided;
mod parts;
mod connected;
mod copies;
mod call_times;
mod state;
mod connect;
mod stands;
mod samples;
mod hopeless;
mod stopped;
mod issue;
mod collective;
mod symmetric;
mod messages;
mod own;
mod machine;
mod buffer;
mod tracked;

pub use buffer::{DeviceSlice, DeviceSliceMut};
pub use clusters::Clusters;
pub(crate) use copies::SLOTS as COPY_SLOTS;
pub use custom::CustomKernels;
pub(crate) use driver::side_stream;
pub use driver::{CallersMemory, Device, Stream, StreamRef};
pub use kernels::{DeviceKernels, Forms};
pub use monitor::Monitor;
pub(crate) use one_sided::OneSided;
pub use parts::CudaParts;
pub use state::Cuda;
pub use tiles::Tiles;
pub(crate) use tracked::{Access, Place, Record, check_stream};
pub use tracked::{GpuElement, GpuRead, GpuWrite};
