//! The twelve element types as the oracle sees them: exact numbers in a wider type, and data that has one right answer.
//!
//! Integers are computed modulo 2^128 and cut down, so any bits have one right answer in any order. Floats are computed in
//! binary64 on data for which no partial result is rounded, whatever the order of the ranks: then the order does not show.

use crate::minifloat::{BF16, F8E4M3 as E4M3, F8E5M2 as E5M2, F16};
use oxccl::{Element, F8E4M3, F8E5M2, RedOp, bf16, f16};
use std::fmt::Debug;

/// Which element of which rank's input, in which test.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The operator that will see it.
    pub op: RedOp,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// Whose input.
    pub rank: u32,
    /// Which element; for functions that reduce, equal indices are combined.
    pub index: usize,
    /// Different tests, different data.
    pub seed: u64,
}

/// Exact arithmetic.
pub trait Wide: Copy {
    /// self + other
    fn plus(self, other: Self) -> Self;
    /// self * other
    fn times(self, other: Self) -> Self;
    /// The greater.
    fn greater(self, other: Self) -> Self;
    /// The lesser.
    fn lesser(self, other: Self) -> Self;
}

impl Wide for i128 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    fn greater(self, other: Self) -> Self {
        Ord::max(self, other)
    }
    fn lesser(self, other: Self) -> Self {
        Ord::min(self, other)
    }
}

impl Wide for f64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn times(self, other: Self) -> Self {
        self * other
    }
    fn greater(self, other: Self) -> Self {
        f64::max(self, other)
    }
    fn lesser(self, other: Self) -> Self {
        f64::min(self, other)
    }
}

/// An element type as the oracle sees it.
pub trait Model: Element + PartialEq + Debug {
    /// Where its numbers are exact.
    type Wide: Wide;

    /// Exactly.
    fn widen(self) -> Self::Wide;
    /// Integers modulo their range, floats to the nearest.
    fn narrow(wide: Self::Wide) -> Self;
    /// An input element whose reduction has one right answer.
    fn sample(sample: Sample) -> Self;
    /// The scalar of a rank for a pre-multiplied sum.
    fn scalar(rank: u32) -> Self;
    /// The average of all ranks' elements.
    fn average(values: impl Iterator<Item = Self::Wide>, nranks: u32) -> Self::Wide;
}

/// Sixty-four well mixed bits (the finaliser of splitmix64).
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Sample {
    /// Bits that all ranks share for this element.
    fn common(&self) -> u64 {
        mix(self.seed ^ (self.index as u64).wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    /// Whether this rank is one of the `k` whose element is not neutral.
    fn is_active(&self, common: u64, k: u32) -> bool {
        let n = u64::from(self.nranks);
        (u64::from(self.rank) + common % n) % n < u64::from(k)
    }

    /// For a format whose consecutive integers reach `integers` exactly.
    fn float(&self, integers: u32) -> f64 {
        let common = self.common();
        let own = mix(common ^ u64::from(self.rank) << 32);
        // All ranks' elements have the same unit, or sums would not be exact.
        let unit = 2f64.powi((common >> 40) as i32 % 5 - 2);
        let within = |most: u32| (own % u64::from(2 * most + 1)) as f64 - f64::from(most);
        match self.op {
            RedOp::Max | RedOp::Min => within(integers) * unit,
            RedOp::Prod if self.is_active(common, 4) => [0.5, 1.0, 2.0, -0.5, -1.0, -2.0][own as usize % 6],
            RedOp::Prod => 1.0,
            // 1/n is rounded: only a power of two times it, alone, stays exact.
            RedOp::Avg if !self.nranks.is_power_of_two() => {
                f64::from(self.is_active(common, 1)) * if own & 1 == 0 { unit } else { -unit }
            }
            op => {
                let integers = if op == RedOp::PreMulSum { integers / SCALAR_MAX } else { integers };
                let most = (integers / self.nranks).max(1);
                if self.is_active(common, integers / most) { within(most) * unit } else { 0.0 }
            }
        }
    }
}

/// Floats' scalars are 1 and this.
const SCALAR_MAX: u32 = 2;

macro_rules! integers {
    ($($int:ty),+) => { $(
        impl Model for $int {
            type Wide = i128;
            fn widen(self) -> i128 {
                self as i128
            }
            fn narrow(wide: i128) -> Self {
                wide as $int
            }
            fn sample(sample: Sample) -> Self {
                mix(sample.common() ^ u64::from(sample.rank) << 32) as $int
            }
            fn scalar(rank: u32) -> Self {
                mix(u64::from(rank)) as $int
            }
            fn average(values: impl Iterator<Item = i128>, nranks: u32) -> i128 {
                let sum = Self::narrow(values.fold(0, Wide::plus));
                sum as i128 / i128::from(nranks)
            }
        }
    )+ };
}

integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($float:ty, $integers:expr, |$x:ident| $widen:expr, |$w:ident| $narrow:expr);+) => { $(
        impl Model for $float {
            type Wide = f64;
            fn widen(self) -> f64 {
                let $x = self;
                $widen
            }
            fn narrow($w: f64) -> Self {
                $narrow
            }
            fn sample(sample: Sample) -> Self {
                Self::narrow(sample.float($integers))
            }
            fn scalar(rank: u32) -> Self {
                Self::narrow(f64::from(1 + rank % SCALAR_MAX))
            }
            fn average(values: impl Iterator<Item = f64>, nranks: u32) -> f64 {
                let share = Self::narrow(1.0 / f64::from(nranks)).widen();
                values.map(|value| value * share).reduce(Wide::plus).unwrap_or(0.0)
            }
        }
    )+ };
}

floats! {
    f64, 1 << 24, |x| x, |w| w;
    f32, 1 << 24, |x| f64::from(x), |w| w as f32;
    f16, 1 << 11, |x| F16.decode(x.to_bits().into()), |w| f16::from_bits(F16.encode(w) as u16);
    bf16, 1 << 8, |x| BF16.decode(x.to_bits().into()), |w| bf16::from_bits(BF16.encode(w) as u16);
    F8E4M3, 1 << 4, |x| E4M3.decode(x.0.into()), |w| F8E4M3(E4M3.encode(w) as u8);
    F8E5M2, 1 << 3, |x| E5M2.decode(x.0.into()), |w| F8E5M2(E5M2.encode(w) as u8)
}

/// Evaluates an expression with `$T` as the type that `$dtype` names.
#[macro_export]
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {{
        use ::oxccl::{DataType, F8E4M3, F8E5M2, bf16, f16};
        macro_rules! arm {
            ($Type:ty) => {{
                type $T = $Type;
                $body
            }};
        }
        match $dtype {
            DataType::I8 => arm!(i8),
            DataType::U8 => arm!(u8),
            DataType::I32 => arm!(i32),
            DataType::U32 => arm!(u32),
            DataType::I64 => arm!(i64),
            DataType::U64 => arm!(u64),
            DataType::F16 => arm!(f16),
            DataType::F32 => arm!(f32),
            DataType::F64 => arm!(f64),
            DataType::BF16 => arm!(bf16),
            DataType::F8E4M3 => arm!(F8E4M3),
            DataType::F8E5M2 => arm!(F8E5M2),
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl::DataType;

    /// The claim on which the whole oracle stands: no partial result, in any order, is rounded.
    fn no_partial_result_is_rounded<T: Model<Wide = f64>>(op: RedOp, nranks: u32) {
        let fold: fn(f64, f64) -> f64 = match op {
            RedOp::Prod => Wide::times,
            RedOp::Max => Wide::greater,
            RedOp::Min => Wide::lesser,
            _ => Wide::plus,
        };
        let share = T::narrow(1.0 / f64::from(nranks)).widen();
        for index in 0..300 {
            let value = |rank| {
                let x = T::sample(Sample { op, nranks, rank, index, seed: 7 }).widen();
                match op {
                    RedOp::PreMulSum => x * T::scalar(rank).widen(),
                    RedOp::Avg => x * share,
                    _ => x,
                }
            };
            for start in 0..nranks {
                for step in [1, nranks - 1] {
                    let mut partial = value(start);
                    assert_eq!(T::narrow(partial).widen(), partial);
                    for k in 1..nranks {
                        partial = fold(partial, value((start + k * step) % nranks));
                        assert_eq!(T::narrow(partial).widen(), partial, "{op} of {nranks}, element {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn float_data_is_exact_in_any_order() {
        for nranks in 1..=16 {
            for &op in RedOp::ALL {
                no_partial_result_is_rounded::<f64>(op, nranks);
                no_partial_result_is_rounded::<f32>(op, nranks);
                no_partial_result_is_rounded::<f16>(op, nranks);
                no_partial_result_is_rounded::<bf16>(op, nranks);
                no_partial_result_is_rounded::<F8E4M3>(op, nranks);
                no_partial_result_is_rounded::<F8E5M2>(op, nranks);
            }
        }
    }

    #[test]
    fn every_type_is_dispatched_to_itself() {
        for &dtype in DataType::ALL {
            with_type!(dtype, T => assert_eq!(<T as Element>::DTYPE, dtype));
        }
    }
}
