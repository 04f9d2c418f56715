//! Layer: device / gpu / threads, blocks of many threads.
//! Takes: a [`KernelMachine`](super::KernelMachine).
//! Gives: [`GpuBlock`]: barriers, bounded waits, bulk loops and the operator, the same on every GPU.
//! Never: an instruction of one GPU.

mod arith;
mod tiles;
mod block;
mod bulk;
mod bulk_copy;
mod sweep;
#[cfg(test)]
mod warps;

pub use block::GpuBlock;
