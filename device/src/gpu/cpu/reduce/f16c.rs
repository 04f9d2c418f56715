//! `f16` through the conversion instructions of F16C: eight elements at a time.
//!
//! VCVTPH2PS and VCVTPS2PH convert subnormals exactly whatever MXCSR says, and the latter rounds to nearest even as its
//! immediate asks, so for numbers they agree with the portable conversions; NaNs are made canonical before narrowing,
//! and the canonical `f32` NaN narrows to the canonical `f16` NaN.

use core::arch::x86_64::*;
use oxccl_shared::reduce::{Combine, CombineKind};

const LANES: usize = 8;

/// See [`super::block::Lanes::arith_f16`].
///
/// # Safety
/// `a` and `b` are readable and `out` writable for `count` elements, and the CPU has AVX2 and F16C.
#[inline(always)]
pub(super) unsafe fn arith<O: Combine>(
    out: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    scalar_bits: Option<u16>,
) -> usize {
    if !matches!(O::KIND, CombineKind::Sum | CombineKind::Prod) {
        return 0;
    }
    let whole = count / LANES * LANES;
    // SAFETY: the CPU has the instructions; every access is to eight elements from `i` on, i + 8 <= whole <= count.
    unsafe {
        let scalar = scalar_bits.map(|bits| _mm256_cvtph_ps(_mm_set1_epi16(bits as i16)));
        for i in (0..whole).step_by(LANES) {
            let x = load(a.add(2 * i));
            let y = load(b.add(2 * i));
            // A multiplication is an operation of its own, so it rounds to f16 before the sum.
            let y = match scalar {
                Some(s) => _mm256_cvtph_ps(narrow(_mm256_mul_ps(y, s))),
                None => y,
            };
            let result =
                if matches!(O::KIND, CombineKind::Sum) { _mm256_add_ps(x, y) } else { _mm256_mul_ps(x, y) };
            _mm_storeu_si128(out.add(2 * i).cast(), narrow(canonical(result)));
        }
    }
    whole
}

/// # Safety
/// Eight elements are readable at `from`, and the CPU has F16C.
#[inline(always)]
unsafe fn load(from: *const u8) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
}

/// # Safety
/// The CPU has F16C.
#[inline(always)]
unsafe fn narrow(values: __m256) -> __m128i {
    // SAFETY: the caller's.
    unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values) }
}

/// # Safety
/// The CPU has AVX.
#[inline(always)]
unsafe fn canonical(values: __m256) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        let nan = _mm256_set1_ps(f32::from_bits(0x7fff_ffff));
        _mm256_blendv_ps(values, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values))
    }
}
