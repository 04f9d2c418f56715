//! Layer: host / proxy.
//! Takes: connections whose other end is on the network.
//! Gives: [`Links`], which move full slots to the network and fill slots from it, a bit at each call.
//! Never: blocks, allocates after init, knows line formats (it asks `shared::proto`).

mod links;

pub use links::{LinkGroup, Links};
