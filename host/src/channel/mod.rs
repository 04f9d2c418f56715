//! Layer: host / channel.
//! Takes: the ranks and their locality (from the bootstrap).
//! Gives: rings and trees, and their connections, over the transport that reaches each peer.
//! Never: moves data.

mod graph;
mod inbox;
mod agree;
mod connect;
mod collnet;
mod wiring;
pub mod device;

pub use collnet::Reducing;
pub use connect::{ConnectError, Connected, Wanted, connect};
pub use graph::RankGraph;
pub use inbox::{ConnKey, Inbox, InboxEntry};
