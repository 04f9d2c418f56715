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
        match self.problem(rank, nranks) {
            Some(error) => Err(error),
            None => Ok(self.checked()),
        }
    }

    /// Elements of a block. Without buffers there is nothing to count.
    #[inline]
    fn elems(&self) -> usize {
        if self.func.has_buffers() { self.count } else { 0 }
    }

    /// Why the call is refused.
    fn problem(&self, rank: Rank, nranks: u32) -> Option<ArgumentError> {
        let Untyped { func, dtype, .. } = *self;
        let count = self.elems();
        if func.names_a_rank() && self.peer >= nranks {
            return Some(ArgumentError::NoSuchRank { func, rank: Rank(self.peer), nranks });
        }
        let elems = count.checked_mul(nranks as usize);
        if elems
            .and_then(|n| n.checked_mul(dtype.size_bytes()))
            .is_none_or(|bytes| bytes > isize::MAX as usize)
        {
            return Some(ArgumentError::TooLarge { func, count, dtype });
        }
        let buffers = func.buffers(rank == Rank(self.peer));
        if count > 0 && buffers.send != Extent::Unused && self.send.is_null() {
            return Some(ArgumentError::NullBuffer { func, which: "send", count });
        }
        if count > 0 && buffers.recv != Extent::Unused && self.recv.is_null() {
            return Some(ArgumentError::NullBuffer { func, which: "receive", count });
        }
        let is_in_place = count > 0 && nranks > 1 && self.send == self.recv.cast_const();
        if is_in_place && !func.may_be_in_place() {
            return Some(ArgumentError::InPlace { func });
        }
        match self.op.scalar {
            Some((scalar, _)) if func.is_reduction() && scalar != dtype => {
                Some(ArgumentError::ScalarType { func, scalar, buffers: dtype })
            }
            _ => None,
        }
    }

    /// The call, in which there is no [problem](Self::problem).
    #[inline]
    fn checked(&self) -> RawCall {
        let Untyped { func, dtype, .. } = *self;
        let call = Call {
            func,
            dtype,
            op: if func.is_reduction() { self.op.op } else { RedOp::Sum },
            root: Rank(if func.names_a_rank() { self.peer } else { 0 }),
            count: self.elems() as u64,
        };
        let forced = self.selection.map(|selection| selection.forced);
        let scalar_bits = self.op.scalar.map_or(0, |(_, bits)| bits);
        RawCall { call, send: self.send, recv: self.recv, scalar_bits, forced }
    }
}
