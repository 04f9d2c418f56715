//! Layer: host / machine / cuda.
//! Takes: calls with device addresses, streams, the tables of a communicator's connections.
//! Gives: [`Cuda`], which enqueues kernels on users' streams; what stopped a kernel, as the communicator's fault.
//! Never: waits for a kernel, except when a communicator ends; chooses algorithms (`plan` did).
//!
//! From below: `driver`, NVIDIA's; `gpu`, a GPU's memory by it; `kernels`, loaded when a communicator is made; `monitor`, the page
//! through which kernels are stopped and say why; `order`, one operation after the other; `connected`, what launches need of
//! connections; `machine`, with `messages` for what goes between pairs, `issue` for the proxy's orders and `stopped` for faults;
//! `copies`, collectives by copy engines; `one_sided`, which runs no kernel either; `buffer` and `tracked`, what users call it with.

pub mod driver;
mod gpu;
mod tiles;
mod kernels;
mod custom;
mod monitor;
mod order;
mod connected;
mod machine;
mod copies;
mod symmetric;
mod messages;
mod issue;
mod stands;
mod hopeless;
mod stopped;
mod one_sided;
mod buffer;
mod tracked;

pub use buffer::{DeviceSlice, DeviceSliceMut};
pub(crate) use copies::SLOTS as COPY_SLOTS;
pub use custom::CustomKernels;
pub use driver::{CallersMemory, Device, StreamRef};
pub use kernels::{DeviceKernels, Forms};
pub use machine::{Cuda, CudaParts};
pub use monitor::Monitor;
pub(crate) use one_sided::OneSided;
pub use tiles::Tiles;
pub(crate) use tracked::{Access, Place, Record, check_stream};
pub use tracked::{GpuElement, GpuRead, GpuWrite};
