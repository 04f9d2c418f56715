//! The operator on packed elements, one or two words at a time.

use crate::gpu::KernelMachine;
use oxccl_shared::reduce::{self, CombineKind, Element, Max, Min, OpArg};

/// As [`combine_word`], as a call: where words come singly the time goes into fetching instructions that run once, and one
/// copy of them is fetched once.
#[inline(never)]
pub fn combine_one<M: KernelMachine, T: Element>(kind: CombineKind, a: u64, b: u64) -> u64 {
    combine_word::<M, T>(kind, a, b)
}

/// The operator on every element of two words.
#[inline(always)]
pub fn combine_word<M: KernelMachine, T: Element>(kind: CombineKind, a: u64, b: u64) -> u64 {
    match kind {
        CombineKind::Sum => M::sum_word::<T>(a, b),
        CombineKind::Prod => M::prod_word::<T>(a, b),
        CombineKind::Max => reduce::combine_word::<T, Max>(a, b),
        CombineKind::Min => reduce::combine_word::<T, Min>(a, b),
    }
}

/// As [`pre_word`], as a call: few operators have one, and its code would lie between what all others run.
#[cold]
#[inline(never)]
pub fn pre_one<M: KernelMachine, T: Element>(word: u64, scalar_bits: u64) -> u64 {
    pre_word::<M, T>(word, &OpArg { scalar_bits, ..OpArg::NONE })
}

/// As [`post_word`], as a call.
#[cold]
#[inline(never)]
pub fn post_one<T: Element>(word: u64, divisor: u32) -> u64 {
    post_word::<T>(word, &OpArg { divisor, ..OpArg::NONE })
}

/// Every element times the scalar.
#[inline(always)]
pub fn pre_word<M: KernelMachine, T: Element>(word: u64, arg: &OpArg) -> u64 {
    let size = 8 * size_of::<T>() as u32;
    // The scalar in every lane: multiplied by 0..0001 repeated.
    let lanes = u64::MAX / (u64::MAX >> (64 - size));
    M::prod_word::<T>(word, (arg.scalar_bits & (u64::MAX >> (64 - size))).wrapping_mul(lanes))
}

/// Every element divided.
#[inline(always)]
pub fn post_word<T: Element>(word: u64, arg: &OpArg) -> u64 {
    reduce::divide_word::<T>(word, arg.divisor)
}

/// What changes a word's elements: `PRE` multiplies them by the scalar `by`, otherwise it divides them.
#[inline(always)]
pub fn change<M: KernelMachine, T: Element, const PRE: bool>(by: u64) -> impl Fn(u64) -> u64 {
    let arg = OpArg { scalar_bits: by, divisor: by as u32, ..OpArg::NONE };
    #[inline(always)]
    move |word| if PRE { pre_word::<M, T>(word, &arg) } else { post_word::<T>(word, &arg) }
}

/// What a [`reduction`] does besides: multiplies the second word's elements by the scalar before.
pub const PRE_SECOND: u8 = 1;
/// Divides the outcome's elements.
pub const POST: u8 = 2;
/// Multiplies both words' elements by the scalar before.
pub const PRE_BOTH: u8 = 3;

/// What reduces two words by the operator `KIND`, a [`CombineKind`]. `EXTRA` is nothing (0), or what it does besides, by `by`.
#[inline(always)]
pub fn reduction<M: KernelMachine, T: Element, const KIND: u8, const EXTRA: u8>(
    by: u64,
) -> impl Fn(u64, u64) -> u64 {
    let arg = OpArg { scalar_bits: by, divisor: by as u32, ..OpArg::NONE };
    let kind = match KIND {
        0 => CombineKind::Sum,
        1 => CombineKind::Prod,
        2 => CombineKind::Max,
        _ => CombineKind::Min,
    };
    #[inline(always)]
    move |a, b| {
        let a = if EXTRA == PRE_BOTH { pre_word::<M, T>(a, &arg) } else { a };
        let b = if EXTRA == PRE_BOTH || EXTRA == PRE_SECOND { pre_word::<M, T>(b, &arg) } else { b };
        let value = combine_word::<M, T>(kind, a, b);
        if EXTRA == POST { post_word::<T>(value, &arg) } else { value }
    }
}
