//! A call with its buffers, as engines and machines take it.

use crate::plan::{Call, Forced};
use oxccl_shared::abi::{Buffers, Extent, Rank};

/// A call with its buffers.
#[derive(Clone, Copy, Debug)]
pub struct RawCall {
    /// The call.
    pub call: Call,
    /// Input; unused where this rank has none.
    pub send: *const u8,
    /// Output; unused where this rank has none.
    pub recv: *mut u8,
    /// The scalar of a pre-multiplied sum, one element in the low bytes.
    pub scalar_bits: u64,
    /// What is insisted on for this call, in place of the communicator's.
    pub forced: Option<Forced>,
}

impl RawCall {
    /// Whether output and input share memory, as far as the function allows.
    pub(crate) fn is_in_place(&self, rank: Rank) -> bool {
        let block = rank.index() * self.call.bytes() as usize;
        let (send, recv) = (self.send.addr(), self.recv.addr());
        match self.call.func.buffers(true) {
            buffers if !buffers.has_own_block() => send == recv,
            Buffers { send: Extent::Count, .. } => send == recv.wrapping_add(block),
            _ => recv == send.wrapping_add(block),
        }
    }
}
