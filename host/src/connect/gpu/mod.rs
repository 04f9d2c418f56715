//! Layer: host / connect / gpu.
//! Takes: a bootstrap and this rank's GPU.
//! Gives: rings and a mesh of connections, and trees if they are asked for, in parts that are made as they are needed: in GPU memory that
//! every rank of the host has mapped, and to other hosts over a network; the tables by which kernels find them.
//! Never: launches a kernel, knows what a connection is used for.
//!
//! From below: `routes`, `trees`, `chains`, `part`, `layout` and `channel_places`, pure; `tables`; `survey`, which channels there are; `net`; `parts`; `connect`.

mod routes;
mod trees;
mod heads;
mod part;
mod layout;
mod channel_places;
mod tables;
mod survey;
mod net;
mod parts;
mod connect;

pub use connect::{DeviceConnected, DeviceInfo, DeviceWanted};
pub use heads::{DeviceHeads, PlaceInHost};
pub use layout::{ConnName, DeviceLayout};
pub use parts::{Parts, PartsOpen};
pub use routes::{RouteSettings, Routes};
pub use survey::{FileError, Survey, SurveyError, SurveyWanted, survey};
pub use trees::DeviceTrees;
