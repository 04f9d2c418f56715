//! Layer: host / channel / device.
//! Takes: a bootstrap and this rank's GPU.
//! Gives: rings and a mesh of connections, and trees if they are asked for, in GPU memory that every rank of the host has mapped;
//! the tables by which kernels find them.
//! Never: launches a kernel, knows what a connection is used for.
//!
//! From below: `trees` and `layout`, pure; `tables`; `agree`; `survey`, which channels there are; `connect`.

mod trees;
mod layout;
mod tables;
mod agree;
mod survey;
mod connect;

pub use connect::{DeviceCard, DeviceConnected, DeviceWanted, connect};
pub use layout::DeviceLayout;
pub use survey::{FileError, Survey, SurveyError, SurveyWanted, survey};
pub use trees::DeviceTrees;
