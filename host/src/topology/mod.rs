//! Layer: host / topology.
//! Takes: an [`Inventory`] of a host's CPUs, PCI devices, GPUs and NICs, from a file in NCCL's XML format or from
//! detection.
//! Gives: a [`System`] of nodes and links, the [`Paths`] between them, and [`TopoGraph`]s: the rings, trees and heads
//! that the search found, in NCCL's terms and with NCCL's answers where those are known.
//! Never: reads a clock or the environment: the same inventory and settings give the same graphs on every rank.
//! Otherwise ranks would build channels that do not match.
//!
//! Modules in data-flow order: `xml`, `detect` and `inventory` (the devices), `system` (the links between them),
//! `paths` (the routes over those links), `search` (the channels to use), `channels` (channels over all hosts). Where
//! each rank sees a part of its host, `merge` makes one inventory of the parts. `summary` encodes a host's search
//! results for other hosts. `nic` gives the distance between a GPU and its NIC.

mod bus_id;
mod inventory;
mod merge;
pub mod xml;
pub mod detect;
pub mod system;
pub mod paths;
pub mod search;
pub mod channels;
mod settings;
mod summary;
mod nic;

pub use bus_id::BusId;
pub use channels::{Channels, Gate, HostLanes, Inside, JoinError};
pub use inventory::{C2c, Cpu, Device, Gpu, Inventory, Net, Nic, NvLink, Pci};
pub use merge::MergeError;
pub use nic::NicReach;
pub use paths::{PathKind, PathPolicy, Paths, PeerAccess};
pub use search::{GraphId, Graphs, Lane, Pattern, SearchConfig, TopoGraph};
pub use settings::{Dump, TopologySettings};
pub use summary::{AgreeError, Agreed, Pairs, Reach, Summary, agree};
pub use system::{System, SystemError, Tables};
pub use xml::XmlError;
