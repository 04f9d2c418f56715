//! A call on untyped memory, and what can be known of it without touching memory.

use crate::api::error::ArgumentError;
use crate::api::operator::ReduceOp;
use crate::api::selection::Selection;
use crate::launch::RawCall;
use crate::plan::Call;
use oxccl_shared::abi::{DataType, Extent, Func, Rank, RedOp};

/// A call on untyped memory, for bindings and tools: counts as in the table of operations, whatever the pointers' alignment.
#[derive(Clone, Copy, Debug)]
pub struct Untyped {
    /// The function.
    pub func: Func,
    /// Input.
    pub send: *const u8,
    /// Output.
    pub recv: *mut u8,
    /// Elements, as in the table.
    pub count: usize,
    /// Their type.
    pub dtype: DataType,
    /// Operator of a reduction.
    pub op: ReduceOp,
    /// Root, or the peer of a send or receive.
    pub peer: u32,
    /// The algorithms that this call may use, the same on every rank; `None`: as the communicator decides.
    pub selection: Option<Selection>,
}

impl Untyped {
    /// A call of `func` without buffers: set the other fields with struct update syntax.
    pub fn new(func: Func, dtype: DataType) -> Untyped {
        let (send, recv) = (std::ptr::null(), std::ptr::null_mut());
        Untyped { func, send, recv, count: 0, dtype, op: ReduceOp::SUM, peer: 0, selection: None }
    }

    /// A barrier, which has no buffers.
    pub(super) fn barrier() -> Untyped {
        Untyped::new(Func::Barrier, DataType::U8)
    }

    /// Checks everything about the call that can be known without touching memory.
    #[inline]
    pub(in crate::api) fn check(&self, rank: Rank, nranks: u32) -> Result<RawCall, ArgumentError> {
        let Untyped { func, dtype, .. } = *self;
        // Without buffers there is nothing to count.
        let count = if func.has_buffers() { self.count } else { 0 };
        if func.names_a_rank() && self.peer >= nranks {
            return Err(ArgumentError::NoSuchRank { func, rank: Rank(self.peer), nranks });
        }
        let elems = count.checked_mul(nranks as usize);
        if elems
            .and_then(|n| n.checked_mul(dtype.size_bytes()))
            .is_none_or(|bytes| bytes > isize::MAX as usize)
        {
            return Err(ArgumentError::TooLarge { func, count, dtype });
        }
        let buffers = func.buffers(rank == Rank(self.peer));
        if count > 0 && buffers.send != Extent::Unused && self.send.is_null() {
            return Err(ArgumentError::NullBuffer { func, which: "send", count });
        }
        if count > 0 && buffers.recv != Extent::Unused && self.recv.is_null() {
            return Err(ArgumentError::NullBuffer { func, which: "receive", count });
        }
        let is_in_place = count > 0 && nranks > 1 && self.send == self.recv.cast_const();
        if is_in_place && !func.may_be_in_place() {
            return Err(ArgumentError::InPlace { func });
        }
        let scalar_bits = match self.op.scalar {
            Some((scalar, _)) if func.is_reduction() && scalar != dtype => {
                return Err(ArgumentError::ScalarType { func, scalar, buffers: dtype });
            }
            Some((_, bits)) => bits,
            None => 0,
        };
        let call = Call {
            func,
            dtype,
            op: if func.is_reduction() { self.op.op } else { RedOp::Sum },
            root: Rank(if func.names_a_rank() { self.peer } else { 0 }),
            count: count as u64,
        };
        let forced = self.selection.map(|selection| selection.forced);
        Ok(RawCall { call, send: self.send, recv: self.recv, scalar_bits, forced })
    }
}
