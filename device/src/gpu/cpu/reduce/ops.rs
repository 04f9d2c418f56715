//! The loops as their callers see them: signatures, options and the pair of one element type and operator.

use oxccl_shared::reduce::OpArg;

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
