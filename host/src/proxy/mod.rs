//! Layer: host / proxy.
//! Takes: connections whose other end is on the network.
//! Gives: [`Links`], which move full slots to streams and fill slots from them, a bit at each call; [`progress`], which does
//! it over any network; [`service`], through which ranks of a host use each other's.
//! Never: blocks, allocates after init, knows line formats (it asks `shared::proto`).

mod links;
pub mod progress;
pub mod service;

pub use links::{LinkGroup, Links};
