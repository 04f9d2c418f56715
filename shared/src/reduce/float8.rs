//! The two 8-bit floats of the OCP OFP8 specification, as CUDA converts to them with `__NV_SATFINITE`.

use super::convert;

/// OFP8 E4M3 ("e4m3fn"): 4 exponent bits, 3 mantissa bits, bias 7, no infinities, NaN is `S.1111.111`, greatest finite
/// value 448, least positive value 2^-9. The bits are the type's identity, so `==` compares bits, not values.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct F8E4M3(pub u8);

/// OFP8 E5M2: the upper byte of a binary16. 5 exponent bits, 2 mantissa bits, bias 15, infinities, greatest finite
/// value 57344, least positive value 2^-16. The bits are the type's identity, so `==` compares bits, not values.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct F8E5M2(pub u8);

#[cfg(feature = "float8")]
macro_rules! same_bits {
    ($($ours:ident),+) => { $(
        impl From<float8::$ours> for $ours {
            fn from(theirs: float8::$ours) -> $ours {
                $ours(theirs.to_bits())
            }
        }
        impl From<$ours> for float8::$ours {
            fn from(ours: $ours) -> float8::$ours {
                float8::$ours::from_bits(ours.0)
            }
        }
    )+ };
}

#[cfg(feature = "float8")]
same_bits!(F8E4M3, F8E5M2);

impl F8E4M3 {
    /// The greatest finite value, 448.
    pub const MAX: Self = F8E4M3(0x7e);
    /// The NaN that arithmetic and conversion produce.
    pub const NAN: Self = F8E4M3(0x7f);

    /// The nearest value, ties to even; beyond the range, infinities included, plus or minus 448; NaN for NaN.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        F8E4M3(convert::f8e4m3_from_f32(value))
    }

    /// This value, exactly; a NaN for NaN.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        convert::f8e4m3_to_f32(self.0)
    }
}

impl F8E5M2 {
    /// The greatest finite value, 57344.
    pub const MAX: Self = F8E5M2(0x7b);
    /// The NaN that arithmetic and conversion produce.
    pub const NAN: Self = F8E5M2(0x7f);

    /// The nearest value, ties to even; beyond the range, infinities included, plus or minus 57344; NaN for NaN.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        F8E5M2(convert::f8e5m2_from_f32(value))
    }

    /// This value, exactly, infinities included; a NaN for NaN.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        convert::f8e5m2_to_f32(self.0)
    }
}
