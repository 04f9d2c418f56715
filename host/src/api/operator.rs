//! The user's reduction operators.

use oxccl_shared::abi::{DataType, RedOp};
use oxccl_shared::reduce::Element;

/// The operator of an all-reduce, reduce-scatter or reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReduceOp {
    pub(crate) op: RedOp,
    pub(crate) scalar: Option<(DataType, u64)>,
}

impl ReduceOp {
    /// Sum.
    pub const SUM: ReduceOp = ReduceOp::plain(RedOp::Sum);
    /// Product.
    pub const PROD: ReduceOp = ReduceOp::plain(RedOp::Prod);
    /// Maximum; a number wins over a NaN.
    pub const MAX: ReduceOp = ReduceOp::plain(RedOp::Max);
    /// Minimum; a number wins over a NaN.
    pub const MIN: ReduceOp = ReduceOp::plain(RedOp::Min);
    /// Average over the ranks. Floats: the sum of inputs each times 1/n; integers: the sum divided by n, truncated.
    pub const AVG: ReduceOp = ReduceOp::plain(RedOp::Avg);

    const fn plain(op: RedOp) -> ReduceOp {
        ReduceOp { op, scalar: None }
    }

    /// The sum of every rank's input times that rank's own `scalar` (ranks may pass different ones).
    pub fn pre_mul_sum<T: Element>(scalar: T) -> ReduceOp {
        ReduceOp { op: RedOp::PreMulSum, scalar: Some((T::DTYPE, scalar.to_low_bits())) }
    }

    /// A pre-multiplied sum whose scalar's bytes lie in the low bytes of `bits`.
    pub const fn pre_mul_sum_bits(dtype: DataType, bits: u64) -> ReduceOp {
        ReduceOp { op: RedOp::PreMulSum, scalar: Some((dtype, bits)) }
    }

    /// The operator of a kind. The low bytes of `bits` are the scalar of a pre-multiplied sum; other kinds have none.
    pub const fn of_kind(kind: RedOp, dtype: DataType, bits: u64) -> ReduceOp {
        match kind {
            RedOp::PreMulSum => ReduceOp::pre_mul_sum_bits(dtype, bits),
            kind => ReduceOp::plain(kind),
        }
    }

    /// The operator's kind.
    pub const fn kind(&self) -> RedOp {
        self.op
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_loses_its_scalar() {
        let weighted = ReduceOp::of_kind(RedOp::PreMulSum, DataType::F32, 0.5f32.to_low_bits());
        assert_eq!(weighted, ReduceOp::pre_mul_sum(0.5f32));
        assert_eq!(ReduceOp::of_kind(RedOp::Max, DataType::F32, 7), ReduceOp::MAX);
    }
}
