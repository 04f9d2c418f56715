//! Sums and products of 8-bit floats by way of `f16`, where the CPU converts that.
//!
//! ```text
//! E5M2 is the upper byte of an f16.
//! E4M3, its magnitude shifted to the top of an f16's mantissa, is an f16 of 1/256 the value, subnormals included:
//!      S EEEE MMM   ->   S 0EEEE MMM0000000
//! ```
//! So widening is integer work on 16-bit lanes, and so is rounding the result back: half as much as on the 32-bit
//! lanes of the portable conversions. Sums of scaled operands are scaled sums; a product is scaled twice and needs a
//! correction.
//!
//! The result is rounded twice, to `f16` and then to 8 bits, and still equals the result of rounding once. If a sum
//! or product of two numbers with p bits (4 here at most) is first rounded to 2p + 2 bits or more (`f16` has 11), the
//! second rounding gives the same result as a single one (Figueroa, "When is double rounding innocuous?", 1995). Near
//! zero `f16` has fewer bits, but sums are exact there, and for products the tests compare all pairs.

use super::f16c::{self, Wide};
use oxccl_shared::reduce::{Combine, Element, Prod};

/// An 8-bit float encoded as a scaled `f16`.
pub(super) trait AsF16 {
    /// Correction factor of a product of two encoded values.
    const PRODUCT_SCALE: f32;
    /// Encodes a code.
    fn widen(code: u8) -> u16;
    /// The code nearest to an encoded value: ties to even, saturated, NaN canonical.
    fn narrow(bits: u16) -> u8;
}

pub(super) struct E4M3;
pub(super) struct E5M2;

impl AsF16 for E4M3 {
    const PRODUCT_SCALE: f32 = 256.0;

    #[inline(always)]
    fn widen(code: u8) -> u16 {
        let code = code as u16;
        let nan = if code & 0x7f == 0x7f { 0x7fff } else { 0 };
        (code & 0x80) << 8 | (code & 0x7f) << 7 | nan
    }

    #[inline(always)]
    fn narrow(bits: u16) -> u8 {
        round_off::<7>(bits, 0x7e)
    }
}

impl AsF16 for E5M2 {
    const PRODUCT_SCALE: f32 = 1.0;

    #[inline(always)]
    fn widen(code: u8) -> u16 {
        (code as u16) << 8
    }

    #[inline(always)]
    fn narrow(bits: u16) -> u8 {
        round_off::<8>(bits, 0x7b)
    }
}

/// Drops the lowest `DROP` bits of a magnitude: rounds to nearest even, saturates at `greatest`, and restores the
/// sign.
#[inline(always)]
fn round_off<const DROP: u32>(bits: u16, greatest: u16) -> u8 {
    let magnitude = bits & 0x7fff;
    let rounded = (magnitude + ((1 << (DROP - 1)) - 1) + ((magnitude >> DROP) & 1)) >> DROP;
    let code = rounded.min(greatest) | (bits >> 8) & 0x80;
    (if magnitude > 0x7c00 { 0x7f } else { code }) as u8
}

/// Encoded elements on the stack at a time.
const PIECE: usize = 512;

/// See [`super::block::Lanes::arith`]. `T` is the type that `D` encodes.
///
/// # Safety
/// As there, on a CPU that has the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn arith<W: Wide, D: AsF16, T: Element, O: Combine>(
    out: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    scalar: Option<T>,
) -> usize {
    let scalar = scalar.map(|s| [D::widen(s.to_low_bits() as u8); PIECE]);
    let mut start = 0;
    while start < count {
        let len = PIECE.min(count - start) / W::LANES * W::LANES;
        if len == 0 {
            break;
        }
        // SAFETY: start + len <= count.
        unsafe {
            let mut x = encoded::<D>(b.add(start), len);
            if let Some(s) = &scalar {
                arith_f16::<W, D, Prod>(&mut x, s, len);
                // The pre-multiplication is an operation of its own, so it rounds to 8 bits before the sum.
                for bits in &mut x[..len] {
                    *bits = D::widen(D::narrow(*bits));
                }
            }
            arith_f16::<W, D, O>(&mut x, &encoded::<D>(a.add(start), len), len);
            for (i, bits) in x[..len].iter().enumerate() {
                out.add(start + i).write(D::narrow(*bits));
            }
        }
        start += len;
    }
    start
}

/// # Safety
/// `len` codes, at most `PIECE`, are readable.
#[inline(always)]
unsafe fn encoded<D: AsF16>(codes: *const u8, len: usize) -> [u16; PIECE] {
    let mut piece = [0; PIECE];
    for (i, bits) in piece[..len].iter_mut().enumerate() {
        // SAFETY: i < len.
        *bits = D::widen(unsafe { codes.add(i).read() });
    }
    piece
}

/// `x = O(x, y)`
///
/// # Safety
/// `len` is a multiple of `W::LANES` and at most `PIECE`, and the CPU has the instructions of `W`.
#[inline(always)]
unsafe fn arith_f16<W: Wide, D: AsF16, O: Combine>(x: &mut [u16; PIECE], y: &[u16; PIECE], len: usize) {
    let out = x.as_mut_ptr().cast::<u8>();
    // SAFETY: both hold `len` elements.
    unsafe { f16c::arith::<W, O>(out, out, y.as_ptr().cast(), len, None, D::PRODUCT_SCALE) };
}
