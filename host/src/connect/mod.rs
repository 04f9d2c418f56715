//! Layer: host / connect.
//! Takes: the ranks and their locality (from the bootstrap).
//! Gives: rings and trees, and their connections, over the transport that reaches each peer: of ranks on CPUs (`cpu`) and on GPUs
//! (`gpu`).
//! Never: moves data.

mod error;
mod agree;
pub mod cpu;
pub mod gpu;

pub use error::ConnectError;
