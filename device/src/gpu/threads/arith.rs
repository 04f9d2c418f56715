//! The operator on packed elements, one or two words at a time.

use super::sweep::repeat;
use crate::gpu::{KernelMachine, Pack};
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

/// What a [`reduction`] does besides: multiplies the elements of all words but the first by the scalar before.
pub const PRE_OTHERS: u8 = 1;
/// Divides the outcome's elements.
pub const POST: u8 = 2;
/// Multiplies the elements of all words by the scalar before.
pub const PRE_ALL: u8 = 3;

/// What does to packs what a function does to their words.
#[inline(always)]
pub fn of_packs<const N: usize>(word: impl Fn([u64; N]) -> u64) -> impl Fn([Pack; N]) -> Pack {
    #[inline(always)]
    move |packs| [word(packs.map(|pack| pack[0])), word(packs.map(|pack| pack[1]))]
}

/// What does to elements what a function does to words of them.
#[inline(always)]
pub fn of_elements<T: Element, const N: usize>(word: impl Fn([u64; N]) -> u64) -> impl Fn([T; N]) -> T {
    #[inline(always)]
    move |values| T::from_low_bits(word(values.map(T::to_low_bits)))
}

/// What reduces words in their order by the operator `KIND`, a [`CombineKind`]. `EXTRA` is nothing (0), or what it does besides, by `by`.
#[inline(always)]
pub fn reduction<M: KernelMachine, T: Element, const KIND: u8, const EXTRA: u8, const N: usize>(
    by: u64,
) -> impl Fn([u64; N]) -> u64 + Copy {
    let arg = OpArg { scalar_bits: by, divisor: by as u32, ..OpArg::NONE };
    let kind = match KIND {
        0 => CombineKind::Sum,
        1 => CombineKind::Prod,
        2 => CombineKind::Max,
        _ => CombineKind::Min,
    };
    #[inline(always)]
    move |words| {
        let first = if EXTRA == PRE_ALL { pre_word::<M, T>(words[0], &arg) } else { words[0] };
        let mut value = first;
        repeat!(N, n => {
            if n > 0 {
                let has_pre = EXTRA == PRE_ALL || EXTRA == PRE_OTHERS;
                let word = if has_pre { pre_word::<M, T>(words[n], &arg) } else { words[n] };
                value = combine_word::<M, T>(kind, value, word);
            }
        });
        if EXTRA == POST { post_word::<T>(value, &arg) } else { value }
    }
}
