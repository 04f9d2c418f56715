//! Where the messages of several peers are in one buffer.

use oxccl_shared::abi::Rank;

/// The layout of the peers' messages in a buffer: each is at `rank * stride_bytes`, `len_bytes` long but ending at
/// `end_bytes`.
#[derive(Clone, Copy)]
pub struct Span {
    /// Distance between two ranks' messages.
    pub stride_bytes: usize,
    /// Length of a message.
    pub len_bytes: usize,
    /// End of the buffer.
    pub end_bytes: usize,
}

impl Span {
    /// The same message for all.
    pub fn same(len_bytes: usize) -> Span {
        Span { stride_bytes: 0, len_bytes, end_bytes: usize::MAX }
    }

    /// A block for each rank.
    pub fn blocks(stride_bytes: usize, len_bytes: usize) -> Span {
        Span { stride_bytes, len_bytes, end_bytes: usize::MAX }
    }

    #[inline(always)]
    pub(super) fn offset_bytes(&self, rank: Rank) -> usize {
        rank.index() * self.stride_bytes
    }

    /// Offset and length of `rank`'s message.
    #[inline(always)]
    pub fn mine(&self, rank: Rank) -> (usize, usize) {
        (self.offset_bytes(rank), self.len_of(rank))
    }

    #[inline(always)]
    pub(super) fn len_of(&self, rank: Rank) -> usize {
        self.len_bytes.min(self.end_bytes.saturating_sub(self.offset_bytes(rank)))
    }
}
