//! Layer: host / connect.
//! Takes: the ranks and their locality (from the bootstrap).
//! Gives: rings and trees, and their connections, over the transport that reaches each peer: of ranks on CPUs (`cpu`) and on GPUs
//! (`gpu`).
//! Never: moves data.
//!
//! ```text
//! meet      what every rank says of its process and its unit           `pipeline`, for all machines
//! check     whether they have the same settings and reach each other
//! plan      rings and trees, and how connections lie in memory         `Steps`, of each machine
//! share     allocate memory, and open what the others allocated
//! connect   what shares no memory: networks, TCP among them
//! ```

mod error;
mod vote;
mod settings;
mod pipeline;
mod collnet;
pub mod cpu;
pub mod gpu;

pub use error::ConnectError;
pub(crate) use pipeline::connect;
pub use settings::{Setting, Values};
