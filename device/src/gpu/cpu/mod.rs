//! Layer: device / gpu / cpu, the CPU backend.
//! Takes: a reduction table and a [`Waiter`].
//! Gives: [`CpuBlock`], a block of one thread whose bulk operations are vectorised loops.
//! Never: decides how to wait: that is the [`Waiter`]'s part.

pub mod reduce;
pub mod maker;
mod block;

pub use block::{CpuBlock, Waiter};
