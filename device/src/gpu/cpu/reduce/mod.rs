//! Layer: device / gpu / cpu, the arithmetic of the CPU backend on whole slices.
//! Takes: raw memory, which other processes may map too, and an element type and operator of `oxccl_shared::reduce`.
//! Gives: [`table`], loops compiled for the best instructions of this CPU, and [`copy`].
//! Never: a reference to the memory it works on, a different result on a different machine.
//!
//! ```text
//!   a, b (any address) --load--> registers --op--> staging block (on the stack, in L1) --copy--> dst, dst2
//!                                             \--> dst itself, if it is no operand and takes plain stores
//! ```
//! The staging block lets the compiler vectorise in-place operations: where `dst` is `a` or `b`, a loop that stores
//! to it must assume that each store changes the next load. It also makes two destinations and non-temporal stores a
//! matter of copying the block, instead of more loops. It costs one L1 round trip (figures in `tests/speed.rs`).
//!
//! The loops are the scalar functions of `oxccl_shared::reduce` in a plain `for`, compiled once per [`Machine`] with
//! that machine's features enabled, so that every path gives the same bits by construction. Only sums and products of
//! `f16` and 8-bit floats are written by hand, for CPUs whose conversion instructions no compiler finds.

mod ops;
mod ahead;
mod stream;
mod block;
#[cfg(target_arch = "x86_64")]
mod f16c;
#[cfg(target_arch = "x86_64")]
mod float8;
mod machine;

use oxccl_shared::abi::DataType;
use oxccl_shared::reduce::CombineKind;

pub use ahead::set_asking_pays;
pub(crate) use ahead::{ask_to_read, ask_to_write, asking_pays};
pub use machine::Machine;
pub use ops::{CombineFn, Flags, MapFn, ReduceTable};
pub use stream::{assert_fenced, copy};

/// The loops for `dtype` under `kind`, for the best instructions of this CPU. Cheap, but not free: a plan keeps the
/// reference.
pub fn table(dtype: DataType, kind: CombineKind) -> &'static ReduceTable {
    Machine::best().table(dtype, kind)
}

#[cfg(test)]
mod tests;
