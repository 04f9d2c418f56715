//! The twelve element types and the operators on each. The rules they follow are in the parent module's docs.

use super::convert;
use super::{F8E4M3, F8E5M2, bf16, f16};
use crate::abi::DataType;

/// One element of a collective's buffer. Every bit pattern of its size is a value. No method shares its name with one
/// of `Ord`'s, so that importing the trait leaves `a.min(b)` on integers what it was.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// This type's number in the ABI.
    const DTYPE: DataType;

    /// The element whose bytes are the low bytes of `bits`; the rest is ignored.
    fn from_low_bits(bits: u64) -> Self;
    /// The element's bytes in the low bytes of a word, the rest zero.
    fn to_low_bits(self) -> u64;

    /// self + other
    fn sum(self, other: Self) -> Self;
    /// self * other
    fn prod(self, other: Self) -> Self;
    /// The lesser; if one is NaN, the other.
    fn lesser(self, other: Self) -> Self;
    /// The greater; if one is NaN, the other.
    fn greater(self, other: Self) -> Self;
    /// self * scalar: the pre-operation of a pre-multiplied sum, on each rank's input.
    #[inline(always)]
    fn premul(self, scalar: Self) -> Self {
        self.prod(scalar)
    }
    /// self / n, integers truncating towards zero; `n` of 0 counts as 1. The post-operation of an average.
    fn post_div(self, n: u32) -> Self;
}

/// An element type with fractions.
pub trait Float: Element {
    /// 1/n, rounded to nearest even (narrow types by way of `f32`, whose rounding shows only for `n` above 2^20);
    /// `n` of 0 counts as 1. Zero when `n` is too great for the type: from 1024 on for
    /// [`F8E4M3`], from 131072 on for [`F8E5M2`], from 2^25 on for [`struct@f16`].
    fn recip_of(n: u32) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! integer {
    ($($int:ty = $dtype:ident),+) => { $(
        impl sealed::Sealed for $int {}
        impl Element for $int {
            const DTYPE: DataType = DataType::$dtype;
            #[inline(always)]
            fn from_low_bits(bits: u64) -> Self {
                bits as $int
            }
            #[inline(always)]
            fn to_low_bits(self) -> u64 {
                self as u64 & (u64::MAX >> (64 - <$int>::BITS))
            }
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
            #[inline(always)]
            fn post_div(self, n: u32) -> Self {
                quotient!($dtype, self, if n == 0 { 1 } else { n }) as $int
            }
        }
    )+ };
}

/// Division wide enough for the element and for any `u32`. The divisor is at least 1, so a signed quotient cannot
/// overflow.
macro_rules! quotient {
    (U8, $x:expr, $n:expr) => {
        $x as u32 / $n
    };
    (U32, $x:expr, $n:expr) => {
        $x / $n
    };
    (U64, $x:expr, $n:expr) => {
        $x / $n as u64
    };
    ($signed:ident, $x:expr, $n:expr) => {
        $x as i64 / $n as i64
    };
}

integer!(i8 = I8, u8 = U8, i32 = I32, u32 = U32, i64 = I64, u64 = U64);

macro_rules! wide_float {
    ($($float:ident, $bits:ty = $dtype:ident),+) => { $(
        impl sealed::Sealed for $float {}
        impl Element for $float {
            const DTYPE: DataType = DataType::$dtype;
            #[inline(always)]
            fn from_low_bits(bits: u64) -> Self {
                $float::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn to_low_bits(self) -> u64 {
                self.to_bits() as u64
            }
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                canonical!($float, $bits, self + other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                canonical!($float, $bits, self * other)
            }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                // Equal values differ in bits only as +0 and -0 do: the sign bit of either makes the lesser zero.
                let equal = $float::from_bits(self.to_bits() | other.to_bits());
                let ordered = if self < other { self } else if other < self { other } else { equal };
                number!($float, $bits, self, other, ordered)
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let equal = $float::from_bits(self.to_bits() & other.to_bits());
                let ordered = if self > other { self } else if other > self { other } else { equal };
                number!($float, $bits, self, other, ordered)
            }
            #[inline(always)]
            fn post_div(self, n: u32) -> Self {
                canonical!($float, $bits, self / (if n == 0 { 1 } else { n }) as $float)
            }
        }
        impl Float for $float {
            #[inline(always)]
            fn recip_of(n: u32) -> Self {
                (1.0 / (if n == 0 { 1 } else { n }) as f64) as $float
            }
        }
    )+ };
}

/// The result, or the canonical NaN in place of any other.
macro_rules! canonical {
    ($float:ident, $bits:ty, $result:expr) => {{
        let result: $float = $result;
        if result.is_nan() { $float::from_bits(<$bits>::MAX >> 1) } else { result }
    }};
}

/// `ordered` if both operands are numbers, the number if one is, else the canonical NaN.
macro_rules! number {
    ($float:ident, $bits:ty, $a:expr, $b:expr, $ordered:expr) => {{
        let one = if $a.is_nan() { $b } else { $a };
        let result = if $a.is_nan() | $b.is_nan() { one } else { $ordered };
        if $a.is_nan() & $b.is_nan() { $float::from_bits(<$bits>::MAX >> 1) } else { result }
    }};
}

wide_float!(f32, u32 = F32, f64, u64 = F64);

macro_rules! narrow_float {
    ($($float:ident, $bits:ty, $ibits:ty = $dtype:ident, infinity $infinity:literal, $to:path, $from:path,
       [$($get:tt)+] [$make:path]);+) => { $(
        impl sealed::Sealed for $float {}
        impl Element for $float {
            const DTYPE: DataType = DataType::$dtype;
            #[inline(always)]
            fn from_low_bits(bits: u64) -> Self {
                $make(bits as $bits)
            }
            #[inline(always)]
            fn to_low_bits(self) -> u64 {
                (self.$($get)+) as u64
            }
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                $make($from($to(self.$($get)+) + $to(other.$($get)+)))
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                $make($from($to(self.$($get)+) * $to(other.$($get)+)))
            }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                let (a, b) = (self.$($get)+, other.$($get)+);
                let above_all = <$ibits>::MAX;
                let (ka, kb) = (rank_key!(a, $bits, $ibits, $infinity, above_all), rank_key!(b, $bits, $ibits, $infinity, above_all));
                $make(unrank!(if kb < ka { kb } else { ka }, $bits, $ibits))
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let (a, b) = (self.$($get)+, other.$($get)+);
                let below_all = <$ibits>::MIN;
                let (ka, kb) = (rank_key!(a, $bits, $ibits, $infinity, below_all), rank_key!(b, $bits, $ibits, $infinity, below_all));
                let greater = if kb > ka { kb } else { ka };
                // Only a NaN ranks below all numbers: make it the positive one.
                let greater = if greater == below_all { <$ibits>::MAX } else { greater };
                $make(unrank!(greater, $bits, $ibits))
            }
            #[inline(always)]
            fn post_div(self, n: u32) -> Self {
                $make($from($to(self.$($get)+) / (if n == 0 { 1 } else { n }) as f32))
            }
        }
        impl Float for $float {
            #[inline(always)]
            fn recip_of(n: u32) -> Self {
                $make($from((1.0 / (if n == 0 { 1 } else { n }) as f64) as f32))
            }
        }
    )+ };
}

/// A signed integer ordered as the floats are: negative values have their magnitude bits flipped. All NaNs become
/// `nan`.
macro_rules! rank_key {
    ($bits:expr, $uint:ty, $int:ty, $infinity:literal, $nan:expr) => {{
        let is_nan = $bits & (<$uint>::MAX >> 1) > $infinity;
        if is_nan { $nan } else { unrank!($bits as $int, $uint, $int) as $int }
    }};
}

/// The bits of a rank key; its own inverse.
macro_rules! unrank {
    ($key:expr, $uint:ty, $int:ty) => {{
        let key: $int = $key;
        (key ^ ((key >> (<$int>::BITS - 1)) & <$int>::MAX)) as $uint
    }};
}

narrow_float! {
    f16, u16, i16 = F16, infinity 0x7c00, convert::f16_to_f32, convert::f16_from_f32, [to_bits()] [f16::from_bits];
    bf16, u16, i16 = BF16, infinity 0x7f80, convert::bf16_to_f32, convert::bf16_from_f32, [to_bits()] [bf16::from_bits];
    F8E4M3, u8, i8 = F8E4M3, infinity 0x7e, convert::f8e4m3_to_f32, convert::f8e4m3_from_f32, [0] [F8E4M3];
    F8E5M2, u8, i8 = F8E5M2, infinity 0x7c, convert::f8e5m2_to_f32, convert::f8e5m2_from_f32, [0] [F8E5M2]
}
