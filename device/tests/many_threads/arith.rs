//! Elements and operators by number, one element or word at a time.

use oxccl_shared::abi::{DataType, RedOp};
use oxccl_shared::reduce::{
    self, Combine, CombineKind, Element, F8E4M3, F8E5M2, Max, Min, OpArg, Prod, Resolved, Sum, bf16, f16,
};

/// One rank's operator on one type.
#[derive(Clone, Copy)]
pub struct Arith {
    pub dtype: DataType,
    pub operator: Resolved,
    combine: fn(u64, u64) -> u64,
    premul: fn(u64, &OpArg) -> u64,
    divide: fn(u64, u32) -> u64,
}

impl Arith {
    /// What `rank` does for `op`. Pre-multiplied sums have another scalar on every rank, but of 8-bit floats, whose sums would
    /// not be exact.
    pub fn new(dtype: DataType, op: RedOp, nranks: usize, rank: usize) -> Self {
        let scalar = if dtype.size_bytes() == 1 && is_float(dtype) { 2 } else { 1 + rank as u64 % 2 };
        let operator = reduce::resolve(op, dtype, nranks as u32, small(dtype, scalar));
        match dtype {
            DataType::I8 => Self::of::<i8>(operator),
            DataType::U8 => Self::of::<u8>(operator),
            DataType::I32 => Self::of::<i32>(operator),
            DataType::U32 => Self::of::<u32>(operator),
            DataType::I64 => Self::of::<i64>(operator),
            DataType::U64 => Self::of::<u64>(operator),
            DataType::F16 => Self::of::<f16>(operator),
            DataType::F32 => Self::of::<f32>(operator),
            DataType::F64 => Self::of::<f64>(operator),
            DataType::BF16 => Self::of::<bf16>(operator),
            DataType::F8E4M3 => Self::of::<F8E4M3>(operator),
            DataType::F8E5M2 => Self::of::<F8E5M2>(operator),
        }
    }

    fn of<T: Element>(operator: Resolved) -> Self {
        fn combine<T: Element, O: Combine>(a: u64, b: u64) -> u64 {
            reduce::combine_word::<T, O>(a, b)
        }
        Arith {
            dtype: T::DTYPE,
            operator,
            combine: match operator.kind {
                CombineKind::Sum => combine::<T, Sum>,
                CombineKind::Prod => combine::<T, Prod>,
                CombineKind::Max => combine::<T, Max>,
                CombineKind::Min => combine::<T, Min>,
            },
            premul: |word, arg| reduce::premul_word::<T>(word, arg.scalar()),
            divide: reduce::divide_word::<T>,
        }
    }

    pub fn combine(&self, a: u64, b: u64) -> u64 {
        (self.combine)(a, b)
    }

    pub fn pre(&self, word: u64) -> u64 {
        if self.operator.pre { (self.premul)(word, &self.operator.arg) } else { word }
    }

    pub fn post(&self, word: u64) -> u64 {
        if self.operator.post { (self.divide)(word, self.operator.arg.divisor) } else { word }
    }
}

pub fn is_float(dtype: DataType) -> bool {
    use DataType::*;
    matches!(dtype, F16 | F32 | F64 | BF16 | F8E4M3 | F8E5M2)
}

/// A small whole number as an element's bits; at most 3 for 8-bit floats.
pub fn small(dtype: DataType, value: u64) -> u64 {
    match dtype {
        DataType::F16 => u64::from(reduce::f16_from_f32(value as f32)),
        DataType::BF16 => u64::from(reduce::bf16_from_f32(value as f32)),
        DataType::F32 => u64::from((value as f32).to_bits()),
        DataType::F64 => (value as f64).to_bits(),
        DataType::F8E4M3 => [0, 0x38, 0x40, 0x44][value as usize],
        DataType::F8E5M2 => [0, 0x3c, 0x40, 0x42][value as usize],
        _ => value,
    }
}

/// An element that `op` over up to five ranks maps to exact results, whatever the order: any integer, few floats.
pub fn value(dtype: DataType, op: RedOp, seed: u64) -> u64 {
    let random = mix(seed);
    match (dtype, op) {
        (dtype, _) if !is_float(dtype) => random & (u64::MAX >> (64 - 8 * dtype.size_bytes())),
        (_, RedOp::Prod) => small(dtype, 1 + random % 2),
        (DataType::F8E5M2, _) => small(dtype, random % 2),
        (DataType::F8E4M3, _) => small(dtype, random % 4),
        _ => small(dtype, random % 9),
    }
}

/// splitmix64.
pub fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
