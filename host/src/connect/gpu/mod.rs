//! Layer: host / connect / gpu.
//! Takes: a bootstrap and this rank's GPU.
//! Gives: rings and a mesh of connections, and trees if they are asked for: in GPU memory that every rank of the host has mapped, and
//! to other hosts over a network; the tables by which kernels find them.
//! Never: launches a kernel, knows what a connection is used for.
//!
//! From below: `routes`, `trees` and `layout`, pure; `tables`; `survey`, which channels there are; `net`; `connect`.

mod routes;
mod trees;
mod layout;
mod tables;
mod survey;
mod net;
mod connect;

pub use connect::{DeviceConnected, DeviceInfo, DeviceWanted};
pub use layout::{ConnKind, ConnName, DeviceLayout};
pub use net::NetConnected;
pub use routes::{RouteSettings, Routes};
pub use survey::{FileError, Survey, SurveyError, SurveyWanted, survey};
pub use trees::DeviceTrees;
