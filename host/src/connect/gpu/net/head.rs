//! The connections between a head's kernels and the network that reduces: one in each direction, in pinned host memory.

use super::memory::{HostMemory, PlacedConn, Source};
use crate::connect::ConnectError;
use crate::connect::collnet::{JoinedHead, refused};
use crate::connect::gpu::layout::ConnName;
use crate::connect::gpu::tables::ConnSite;
use crate::machine::ConnKind;
use crate::proxy::{CollEnd, CollLane, EndId, Keep};
use oxccl_shared::abi::{ChannelId, ConnLayout, Rank};
use std::sync::Arc;

/// The memory of both.
pub(super) struct HeadMemory {
    /// Chains or stars.
    kind: ConnKind,
    memory: HostMemory,
    slots: ConnLayout,
}

impl HeadMemory {
    /// Makes it for connections with these slots.
    pub fn new(
        source: &dyn Source,
        rank: Rank,
        (kind, slots): (ConnKind, ConnLayout),
    ) -> Result<HeadMemory, ConnectError> {
        let memory = source
            .host(2 * slots.total_bytes())
            .map_err(|source| ConnectError::Device { rank, source: source.into() })?;
        Ok(HeadMemory { kind, memory, slots })
    }

    /// Bytes of pinned memory.
    pub fn len_bytes(&self) -> usize {
        2 * self.slots.total_bytes()
    }

    /// The owner of the memory.
    pub fn keep(&self) -> Keep {
        self.memory.keep()
    }

    /// Where kernels of a channel find both, which go by the name of the next head.
    pub fn conns(&self, channel: usize, next_head: Rank) -> [PlacedConn; 2] {
        [true, false].map(|is_send| {
            let site = ConnSite::new([self.memory.address(self.offset(is_send)); 2], self.slots);
            let name = ConnName { kind: self.kind, channel, peer: next_head, is_send };
            // No rank's at the other end.
            PlacedConn { name, site, len_bytes: 0 }
        })
    }

    fn offset(&self, is_send: bool) -> usize {
        if is_send { 0 } else { self.slots.total_bytes() }
    }

    /// The proxy's end, for a head that has joined the others. To be called once.
    pub fn end(&self, rank: Rank, channel: ChannelId, joined: JoinedHead) -> Result<CollLane, ConnectError> {
        let JoinedHead { comm, head, head_of, next_head, .. } = joined;
        // SAFETY: (1) called once, and the end keeps the memory; all of a block lies there.
        let [up, down] =
            [true, false].map(|is_send| unsafe { self.memory.whole_block(self.offset(is_send), self.slots) });
        let keep: Keep = Arc::new(self.keep());
        // SAFETY: (1) kernels are the only producers of the one and the only consumers of the other.
        let end = unsafe { CollEnd::new(comm, (head, head_of), [up, down], keep) };
        let place = EndId { peer: next_head, channel, is_send: true };
        Ok(CollLane::new(end.map_err(|source| refused(rank, source))?, place))
    }
}
