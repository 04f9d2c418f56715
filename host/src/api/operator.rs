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

    /// The operator's kind.
    pub const fn kind(&self) -> RedOp {
        self.op
    }
}

impl From<RedOp> for ReduceOp {
    /// A pre-multiplied sum without a scalar is [`ReduceOp::SUM`].
    fn from(op: RedOp) -> ReduceOp {
        if op == RedOp::PreMulSum { ReduceOp::SUM } else { ReduceOp::plain(op) }
    }
}
