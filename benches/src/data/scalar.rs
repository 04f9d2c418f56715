//! Element types as the oracle knows them: how an exact value looks in memory.

use oxccl_shared::abi::DataType;

/// Arithmetic wide enough for every type of its class: wrapping `i64` for integers, `f64` for floats.
pub trait Wide: Copy + PartialEq + PartialOrd {
    fn from_int(value: i64) -> Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Divides by the number of ranks: integers toward zero.
    fn over(self, ranks: u32) -> Self;
    /// 2^-1, 1 or 2 for floats. Integers know only the exponents 0 and 1.
    fn power_of_two(exponent: i32) -> Self;
}

impl Wide for i64 {
    fn from_int(value: i64) -> i64 {
        value
    }
    fn add(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    fn mul(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }
    fn over(self, ranks: u32) -> i64 {
        self / i64::from(ranks)
    }
    fn power_of_two(exponent: i32) -> i64 {
        1 << exponent.max(0)
    }
}

impl Wide for f64 {
    fn from_int(value: i64) -> f64 {
        value as f64
    }
    fn add(self, other: f64) -> f64 {
        self + other
    }
    fn mul(self, other: f64) -> f64 {
        self * other
    }
    fn over(self, ranks: u32) -> f64 {
        self / f64::from(ranks)
    }
    fn power_of_two(exponent: i32) -> f64 {
        f64::exp2(f64::from(exponent))
    }
}

/// An element type.
pub trait Scalar {
    type Wide: Wide;
    const SIZE: usize;
    /// Significant bits of a float, the hidden one included; 0 for integers.
    const SIGNIFICANT_BITS: u32;
    /// The bytes of `value` as the low bytes of a word. Integers wrap, floats must be exact.
    fn encode(value: Self::Wide) -> u64;
    /// The value of bytes, for comparison with a tolerance. Not a number where the type says so.
    fn decode(bits: u64) -> f64;
    /// An integer from random bits that keeps its order in `Wide`; unused for floats.
    fn in_range(word: u64) -> Self::Wide;
}

/// An integer of `SIZE` bytes.
pub struct Int<const SIZE: usize, const SIGNED: bool>;

impl<const SIZE: usize, const SIGNED: bool> Scalar for Int<SIZE, SIGNED> {
    type Wide = i64;
    const SIZE: usize = SIZE;
    const SIGNIFICANT_BITS: u32 = 0;

    fn encode(value: i64) -> u64 {
        value as u64
    }

    fn decode(bits: u64) -> f64 {
        Self::in_range(bits) as f64
    }

    fn in_range(word: u64) -> i64 {
        let unused = 64 - 8 * SIZE as u32;
        match SIGNED {
            true => ((word << unused) as i64) >> unused,
            // The upper half of u64 has no place in i64, so its top bit stays clear.
            false => ((word << unused) >> unused.max(1)) as i64,
        }
    }
}

/// A binary float of `SIZE` bytes with `BITS` significant bits. `FINITE` types have no infinities: the greatest exponent is an
/// ordinary one.
pub struct Float<const SIZE: usize, const BITS: u32, const FINITE: bool>;

impl<const SIZE: usize, const BITS: u32, const FINITE: bool> Float<SIZE, BITS, FINITE> {
    const EXPONENT_BITS: u32 = 8 * SIZE as u32 - BITS;
    const BIAS: i64 = (1 << (Self::EXPONENT_BITS - 1)) - 1;
    const FRACTION_MASK: u64 = (1 << (BITS - 1)) - 1;
}

impl<const SIZE: usize, const BITS: u32, const FINITE: bool> Scalar for Float<SIZE, BITS, FINITE> {
    type Wide = f64;
    const SIZE: usize = SIZE;
    const SIGNIFICANT_BITS: u32 = BITS;

    fn encode(value: f64) -> u64 {
        let bits = value.to_bits();
        let sign = (bits >> 63) << (8 * SIZE - 1);
        if value == 0.0 {
            return sign;
        }
        let exponent = ((bits >> 52) & 0x7ff) as i64 - 1023 + Self::BIAS;
        let dropped = 52 - (BITS - 1);
        let fraction = (bits & ((1 << 52) - 1)) >> dropped;
        debug_assert!((1..1 << Self::EXPONENT_BITS).contains(&exponent), "{value} is out of range");
        debug_assert_eq!(fraction << dropped, bits & ((1 << 52) - 1), "{value} would be rounded");
        sign | (exponent as u64) << (BITS - 1) | fraction
    }

    fn decode(bits: u64) -> f64 {
        let exponent_mask = (1u64 << Self::EXPONENT_BITS) - 1;
        let exponent = (bits >> (BITS - 1)) & exponent_mask;
        let fraction = bits & Self::FRACTION_MASK;
        let not_finite = if FINITE { fraction == Self::FRACTION_MASK } else { true };
        if exponent == exponent_mask && not_finite {
            return f64::NAN;
        }
        let significand = if exponent == 0 { fraction } else { fraction | 1 << (BITS - 1) };
        let scale = exponent.max(1) as i64 - Self::BIAS - i64::from(BITS - 1);
        let magnitude = significand as f64 * f64::exp2(scale as f64);
        if bits >> (8 * SIZE - 1) & 1 == 1 { -magnitude } else { magnitude }
    }

    fn in_range(word: u64) -> f64 {
        f64::from_int(word as i64)
    }
}

/// What can be done for every element type; [`dispatch`] picks the one that a call has.
pub trait ForScalar {
    type Output;
    fn with<S: Scalar>(self) -> Self::Output;
}

pub fn dispatch<F: ForScalar>(dtype: DataType, f: F) -> F::Output {
    match dtype {
        DataType::I8 => f.with::<Int<1, true>>(),
        DataType::U8 => f.with::<Int<1, false>>(),
        DataType::I32 => f.with::<Int<4, true>>(),
        DataType::U32 => f.with::<Int<4, false>>(),
        DataType::I64 => f.with::<Int<8, true>>(),
        DataType::U64 => f.with::<Int<8, false>>(),
        DataType::F16 => f.with::<Float<2, 11, false>>(),
        DataType::F32 => f.with::<Float<4, 24, false>>(),
        DataType::F64 => f.with::<Float<8, 53, false>>(),
        DataType::BF16 => f.with::<Float<2, 8, false>>(),
        DataType::F8E4M3 => f.with::<Float<1, 4, true>>(),
        DataType::F8E5M2 => f.with::<Float<1, 3, false>>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn floats_as_the_machine_and_the_half_crate_write_them() {
        for value in [0.0, 1.0, -1.0, 2.0, 0.5, -0.25, 3.0, 7.0, -6.0, 1.0 / 64.0] {
            assert_eq!(Float::<8, 53, false>::encode(value), value.to_bits());
            assert_eq!(Float::<4, 24, false>::encode(value), u64::from((value as f32).to_bits()));
            assert_eq!(Float::<2, 11, false>::encode(value), u64::from(f16::from_f64(value).to_bits()));
            assert_eq!(Float::<2, 8, false>::encode(value), u64::from(bf16::from_f64(value).to_bits()));
        }
        // OFP8: E4M3 1.0 is 0x38 and its greatest value 448 is 0x7e; E5M2 1.0 is 0x3c, and 0xc6 is -6.
        assert_eq!(Float::<1, 4, true>::encode(1.0), 0x38);
        assert_eq!(Float::<1, 4, true>::encode(448.0), 0x7e);
        assert_eq!(Float::<1, 3, false>::encode(1.0), 0x3c);
        assert_eq!(Float::<1, 3, false>::encode(-6.0), 0xc6);
    }

    #[test]
    fn decoding_reverses_encoding() {
        for bits in 0..=0xffffu64 {
            let value = Float::<2, 11, false>::decode(bits);
            let machine = f16::from_bits(bits as u16).to_f64();
            // The oracle never meets an infinity: it may count as not a number.
            assert!(value == machine || (value.is_nan() && !machine.is_finite()), "{bits:x}");
        }
        assert_eq!(Float::<1, 4, true>::decode(0x7e), 448.0);
        assert!(Float::<1, 4, true>::decode(0xff).is_nan());
        assert_eq!(Float::<1, 3, false>::decode(1), f64::exp2(-16.0));
    }

    #[test]
    fn integers_keep_their_order() {
        assert_eq!(Int::<1, true>::in_range(0xff), -1);
        assert_eq!(Int::<1, false>::in_range(0xfff), 0xff);
        assert_eq!(Int::<8, false>::in_range(u64::MAX), i64::MAX);
        assert_eq!(Int::<8, true>::in_range(u64::MAX), -1);
    }
}
