//! `f16` through the conversion instructions of F16C and AVX-512.
//!
//! VCVTPH2PS and VCVTPS2PH convert subnormals exactly whatever MXCSR says, and the latter rounds to nearest even as
//! its immediate asks, so for numbers they agree with the portable conversions. NaNs are made canonical before
//! narrowing, and the canonical `f32` NaN narrows to the canonical `f16` NaN.

use core::arch::x86_64::*;
use oxccl_shared::reduce::{Combine, CombineKind};

/// A vector of `f32`s. The methods are `unsafe` because the CPU must have the implementation's instructions, beside
/// the obligations that each states.
pub(super) trait Wide: Copy {
    /// Number of elements.
    const LANES: usize;
    /// Every lane `value`.
    unsafe fn splat(value: f32) -> Self;
    /// Widens `LANES` readable `f16`s from `from` on.
    unsafe fn load(from: *const u8) -> Self;
    /// Rounds to `f16` and stores `LANES` writable ones from `to` on.
    unsafe fn store(self, to: *mut u8);
    /// Rounds to `f16` and back.
    unsafe fn rounded(self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// NaNs replaced by the canonical one.
    unsafe fn canonical(self) -> Self;
}

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT;
const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// Every method of a [`Wide`] is a row of intrinsics on values whose instructions the CPU has.
macro_rules! wide {
    ($vector:ty, $lanes:literal, |$v:ident, $w:ident, $p:ident, $q:ident, $x:ident|
     splat $splat:expr, load $load:expr, store $store:expr, rounded $rounded:expr, add $add:expr, mul $mul:expr,
     canonical $canonical:expr) => {
        impl Wide for $vector {
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn splat($x: f32) -> Self {
                // SAFETY: the CPU has the instruction.
                unsafe { $splat }
            }
            #[inline(always)]
            unsafe fn load($p: *const u8) -> Self {
                // SAFETY: the CPU has the instructions, the caller the elements.
                unsafe { $load }
            }
            #[inline(always)]
            unsafe fn store(self, $q: *mut u8) {
                let $v = self;
                // SAFETY: the CPU has the instructions, the caller the room.
                unsafe { $store }
            }
            #[inline(always)]
            unsafe fn rounded(self) -> Self {
                let $v = self;
                // SAFETY: the CPU has the instructions.
                unsafe { $rounded }
            }
            #[inline(always)]
            unsafe fn add(self, $w: Self) -> Self {
                let $v = self;
                // SAFETY: the CPU has the instruction.
                unsafe { $add }
            }
            #[inline(always)]
            unsafe fn mul(self, $w: Self) -> Self {
                let $v = self;
                // SAFETY: the CPU has the instruction.
                unsafe { $mul }
            }
            #[inline(always)]
            unsafe fn canonical(self) -> Self {
                let $v = self;
                // SAFETY: the CPU has the instructions.
                unsafe { $canonical }
            }
        }
    };
}

wide!(__m256, 8, |v, w, p, q, x|
    splat _mm256_set1_ps(x),
    load _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
    store _mm_storeu_si128(q.cast(), _mm256_cvtps_ph::<ROUND>(v)),
    rounded _mm256_cvtph_ps(_mm256_cvtps_ph::<ROUND>(v)),
    add _mm256_add_ps(v, w),
    mul _mm256_mul_ps(v, w),
    canonical _mm256_blendv_ps(v, _mm256_set1_ps(NAN), _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v)));

wide!(__m512, 16, |v, w, p, q, x|
    splat _mm512_set1_ps(x),
    load _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())),
    store _mm256_storeu_si256(q.cast(), _mm512_cvtps_ph::<ROUND>(v)),
    rounded _mm512_cvtph_ps(_mm512_cvtps_ph::<ROUND>(v)),
    add _mm512_add_ps(v, w),
    mul _mm512_mul_ps(v, w),
    canonical _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v), _mm512_set1_ps(NAN)));

/// `O`, a sum or a product, of the whole vectors among `count` `f16`s, `b` multiplied by `scalar` first if there is one;
/// returns how many elements that was. Products of `a` and `b` are multiplied by `product_scale`, a power of two, before
/// they are rounded.
///
/// # Safety
/// 1. `a` and `b` are readable and `out` writable for `count` elements; `out` is `a` or `b` or overlaps neither.
/// 2. The CPU has the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn arith<W: Wide, O: Combine>(
    out: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    scalar: Option<f32>,
    product_scale: f32,
) -> usize {
    let whole = count / W::LANES * W::LANES;
    // SAFETY: obligation 2; every access is to LANES elements from `i` on, and i + LANES <= whole <= count.
    unsafe {
        let scalar = scalar.map(|s| W::splat(s));
        let mut i = 0;
        while i < whole {
            let (x, y) = (W::load(a.add(2 * i)), W::load(b.add(2 * i)));
            // A multiplication is an operation of its own, so it rounds to f16 before the sum.
            let y = match scalar {
                Some(s) => y.mul(s).rounded(),
                None => y,
            };
            let result = match O::KIND {
                CombineKind::Sum => x.add(y),
                _ => x.mul(y).mul(W::splat(product_scale)),
            };
            result.canonical().store(out.add(2 * i));
            i += W::LANES;
        }
    }
    whole
}
