//! Layer: device / kernel, above `coll`.
//! Takes: the arguments that the host launched with.
//! Gives: [`run`], what a kernel does from its arguments to an algorithm, over any [`KernelMachine`](crate::gpu::KernelMachine); and, for
//! a GPU, the entry points, one for each function, algorithm, protocol and element type.
//! Never: an instruction of one machine, but in the entry points.
//!
//! Entries and their names come from `oxccl_shared::algo::kernels`. The grid has one block for each channel.

#[cfg(feature = "entries")]
mod entry;
mod collnet;
mod shared_conns;
mod short;
pub mod run;
pub mod symmetric;

pub use shared_conns::{Extent, SharedConns, save};
