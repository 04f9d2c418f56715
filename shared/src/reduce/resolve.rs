//! Translates a user's operator into a kernel's operations on each element.

use super::element::{Element, Float};
use super::operator::CombineKind;
use super::{F8E4M3, F8E5M2, bf16, f16};
use crate::abi::{DataType, RedOp};

/// Operands of a kernel's operator.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpArg {
    /// Multiplier of inputs when [`Resolved::pre`]: one element's bytes in the low bytes, the rest zero.
    pub scalar_bits: u64,
    /// Divisor of results when [`Resolved::post`]: at least 1.
    pub divisor: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<OpArg>() == 16 && align_of::<OpArg>() == 8);
    assert!(offset_of!(OpArg, scalar_bits) == 0);
    assert!(offset_of!(OpArg, divisor) == 8);
    assert!(offset_of!(OpArg, reserved) == 12);
};

impl OpArg {
    /// For a reduction without multiplier and divisor.
    pub const NONE: OpArg = OpArg { scalar_bits: 0, divisor: 1, reserved: 0 };

    /// The multiplier, as an element.
    #[inline(always)]
    pub fn scalar<T: Element>(&self) -> T {
        T::from_low_bits(self.scalar_bits)
    }
}

/// A user's operator, in a kernel's terms: `post(combine(.., pre(input)))`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The operator on two elements.
    pub kind: CombineKind,
    /// The operands of `pre` and `post`.
    pub arg: OpArg,
    /// Every rank multiplies its own input, and nothing else, by `arg.scalar_bits`.
    pub pre: bool,
    /// The rank that completes an element divides it by `arg.divisor`, once.
    pub post: bool,
}

/// Whether operands may be combined in any order with the same bits. Integers wrap, and minimum and maximum return one operand; sums,
/// products and averages of floats round.
pub const fn is_associative(op: RedOp, dtype: DataType) -> bool {
    use DataType::{I8, I32, I64, U8, U32, U64};
    let is_integer = matches!(dtype, I8 | U8 | I32 | U32 | I64 | U64);
    is_integer || matches!(op, RedOp::Max | RedOp::Min)
}

/// The operations of one rank's kernels for `op` over `nranks` ranks (0 counts as 1). `user_scalar_bits` is the
/// scalar of [`RedOp::PreMulSum`], one element's bytes in the low bytes; other operators ignore it.
pub fn resolve(op: RedOp, dtype: DataType, nranks: u32, user_scalar_bits: u64) -> Resolved {
    let plain = |kind| Resolved { kind, arg: OpArg::NONE, pre: false, post: false };
    match op {
        RedOp::Sum => plain(CombineKind::Sum),
        RedOp::Prod => plain(CombineKind::Prod),
        RedOp::Max => plain(CombineKind::Max),
        RedOp::Min => plain(CombineKind::Min),
        RedOp::PreMulSum => premul(user_scalar_bits & (u64::MAX >> (64 - 8 * dtype.size_bytes()))),
        RedOp::Avg if nranks <= 1 => plain(CombineKind::Sum),
        RedOp::Avg => match recip_bits(dtype, nranks) {
            Some(scalar_bits) => premul(scalar_bits),
            None => Resolved {
                arg: OpArg { divisor: nranks, ..OpArg::NONE },
                post: true,
                ..plain(CombineKind::Sum)
            },
        },
    }
}

fn premul(scalar_bits: u64) -> Resolved {
    Resolved { kind: CombineKind::Sum, arg: OpArg { scalar_bits, ..OpArg::NONE }, pre: true, post: false }
}

/// 1/n as an element of a float type; nothing for integers.
fn recip_bits(dtype: DataType, n: u32) -> Option<u64> {
    Some(match dtype {
        DataType::I8 | DataType::U8 | DataType::I32 | DataType::U32 | DataType::I64 | DataType::U64 => {
            return None;
        }
        DataType::F16 => f16::recip_of(n).to_low_bits(),
        DataType::BF16 => bf16::recip_of(n).to_low_bits(),
        DataType::F32 => f32::recip_of(n).to_low_bits(),
        DataType::F64 => f64::recip_of(n).to_low_bits(),
        DataType::F8E4M3 => F8E4M3::recip_of(n).to_low_bits(),
        DataType::F8E5M2 => F8E5M2::recip_of(n).to_low_bits(),
    })
}
