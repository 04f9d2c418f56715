//! Layer: host / connect / cpu.
//! Takes: a bootstrap and the ranks' processes.
//! Gives: rings, trees and a mesh of connections between ranks on CPUs, over the transport that reaches each peer.
//! Never: moves data.

mod graph;
mod inbox;
mod places;
mod wanted;
mod connected;
mod wiring;
mod collnet;
mod connect;
mod far;

pub use connected::{CpuConnected, Reducing};
pub use far::{FarBytes, FarLinks};
pub use graph::RankGraph;
pub use inbox::{ConnKey, Inbox, InboxEntry};
pub use wanted::CpuWanted;
