//! Layer: host / proxy.
//! Takes: connections whose other end is on the network.
//! Gives: [`progress`], which moves full slots to networks and fills slots from them, a bit at each call; [`service`], through
//! which ranks of a host use each other's.
//! Never: blocks, allocates after init, knows line formats (it asks `shared::proto`).

pub mod progress;
pub mod service;
