//! Layer: host / api / device.
//! Takes: a user's calls with buffers in GPU memory, and streams.
//! Gives: [`DeviceCommunicator`]: the operations of [`crate::Communicator`] between GPUs, put on streams.
//! Never: waits for an operation.

mod buffer;
mod builder;
mod communicator;
mod group;

pub use buffer::{DeviceSlice, DeviceSliceMut};
pub use builder::DeviceCommunicatorBuilder;
pub use communicator::DeviceCommunicator;
pub use group::{DeviceGroup, device_group};
