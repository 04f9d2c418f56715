//! Layer: device / gpu / cpu, the CPU backend.
//! Takes: a reduction table and somebody who knows what to do while waiting.
//! Gives: [`CpuBlock`], a block of one thread whose bulk operations are vectorised loops.
//! Never: blocks in the kernel's name: waiting is the [`Waiter`]'s decision.

pub mod reduce;
mod block;

pub use block::{CpuBlock, Waiter};
