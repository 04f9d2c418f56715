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

mod ahead;
mod stream;
mod block;
#[cfg(target_arch = "x86_64")]
mod f16c;
#[cfg(target_arch = "x86_64")]
mod float8;
mod machine;

use oxccl_shared::abi::DataType;
use oxccl_shared::reduce::{CombineKind, OpArg};

pub(crate) use ahead::{ask_to_read, ask_to_write};
pub use machine::Machine;
pub use stream::{assert_fenced, copy};

bitflags::bitflags! {
    /// Options of a slice operation.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u8 {
        /// The local user's input is multiplied by [`OpArg::scalar_bits`] first.
        const PRE = 1;
        /// The result is divided by [`OpArg::divisor`].
        const POST = 2;
        /// `dst` is memory that this CPU will not read soon: its stores bypass the caches where the machine can, and come before all
        /// later stores (they are fenced on return).
        const STREAM = 4;
        /// The same of `dst2`.
        const STREAM2 = 8;
    }
}

/// `dst[i] = post(op(a[i], pre(b[i])))`, and the same into `dst2` unless it is null, for `count` elements. `a` is a
/// peer's data, `b` the local user's input.
///
/// # Safety
/// 1. `a` and `b` are readable and `dst` and `dst2` (unless null) writable for `count` elements.
/// 2. `dst` is `a` or `b` or overlaps neither; `dst2` overlaps none of the three.
/// 3. No other thread or process writes the operands or accesses the destinations meanwhile.
///
/// Pointers need not be aligned.
pub type CombineFn = unsafe fn(
    dst: *mut u8,
    dst2: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    arg: &OpArg,
    flags: Flags,
);

/// `dst[i] = post(pre(src[i]))`, and the same into `dst2` unless it is null, for `count` elements. Without
/// [`Flags::PRE`] and [`Flags::POST`] the bytes are copied unchanged.
///
/// # Safety
/// 1. `src` is readable and `dst` and `dst2` (unless null) writable for `count` elements.
/// 2. `dst` is `src` or does not overlap it; `dst2` overlaps neither.
/// 3. No other thread or process writes `src` or accesses the destinations meanwhile.
///
/// Pointers need not be aligned.
pub type MapFn =
    unsafe fn(dst: *mut u8, dst2: *mut u8, src: *const u8, count: usize, arg: &OpArg, flags: Flags);

/// The slice operations of one element type under one operator.
#[derive(Clone, Copy, Debug)]
pub struct ReduceTable {
    /// Combines two sources.
    pub combine: CombineFn,
    /// Transforms or copies one source; the operator has no part in it.
    pub map: MapFn,
}

/// The loops for `dtype` under `kind`, for the best instructions of this CPU. Cheap, but not free: a plan keeps the
/// reference.
pub fn table(dtype: DataType, kind: CombineKind) -> &'static ReduceTable {
    Machine::best().table(dtype, kind)
}

#[cfg(test)]
mod tests;
