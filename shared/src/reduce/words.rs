//! Elements packed in 64-bit words, as the LL and LL128 lines carry them: element 0 in the low bits.

use super::element::Element;
use super::operator::Combine;

/// `f` on every element of `word`.
#[inline(always)]
fn map_word<T: Element>(word: u64, f: impl Fn(u32, T) -> T) -> u64 {
    let bits = 8 * size_of::<T>() as u32;
    let mut out = 0;
    let mut shift = 0;
    while shift < 64 {
        out |= f(shift, T::from_low_bits(word >> shift)).to_low_bits() << shift;
        shift += bits;
    }
    out
}

/// Element-wise `O` of two words.
#[inline(always)]
pub fn combine_word<T: Element, O: Combine>(a: u64, b: u64) -> u64 {
    map_word::<T>(a, |shift, x| O::apply(x, T::from_low_bits(b >> shift)))
}

/// Every element of `word` times `scalar`.
#[inline(always)]
pub fn premul_word<T: Element>(word: u64, scalar: T) -> u64 {
    map_word::<T>(word, |_, x| x.premul(scalar))
}

/// Every element of `word` divided by `n` (see [`Element::post_div`]).
#[inline(always)]
pub fn divide_word<T: Element>(word: u64, n: u32) -> u64 {
    map_word::<T>(word, |_, x| x.post_div(n))
}

/// `acc[i] = O(acc[i], src[i])`, element-wise, for as many words as both slices have.
#[inline(always)]
pub fn combine_words<T: Element, O: Combine>(acc: &mut [u64], src: &[u64]) {
    for (a, &b) in acc.iter_mut().zip(src) {
        *a = combine_word::<T, O>(*a, b);
    }
}
