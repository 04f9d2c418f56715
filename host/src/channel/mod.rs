//! Layer: host / channel.
//! Takes: who the ranks are and where (from the bootstrap).
//! Gives: rings and trees, and the connections they need, made over whatever transport reaches each peer.
//! Never: moves data.

mod graph;
mod inbox;
mod agree;
mod connect;
mod networks;
mod collnet;
mod wiring;
pub mod device;

pub use collnet::Reducing;
pub use connect::{ConnectError, Connected, Wanted, connect};
pub use graph::Graph;
pub use inbox::{ConnKey, Inbox, InboxEntry};
