//! What an order puts on which connection. The next order mostly puts the same there: programs repeat their operations.

use super::coll::{Cut, Moves, Reduced};
use super::order::{Elements, Operation, ProxyOrder};
use oxccl_shared::abi::{ChannelId, DataType, Func, Protocol};
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::reduce::CombineKind;

/// The latest order that meant something, expanded.
pub(super) struct Expansion {
    /// All of it matters but the tag.
    order: Option<ProxyOrder>,
    pub(super) protocol: Protocol,
    elements: Elements,
    /// Of a collective through a network that reduces, what that is to do.
    to_network: Option<Func>,
    /// Connections, by their numbers in the proxy, and steps on each. The capacity is kept.
    pub(super) parts: Vec<(u16, u64)>,
}

impl Expansion {
    /// Of no order, with room for so many connections. An order has at most one part on each.
    pub(super) fn new(connections: usize) -> Expansion {
        let elements = Elements::new(DataType::U8, CombineKind::Sum);
        Expansion {
            order: None,
            protocol: Protocol::Simple,
            elements,
            to_network: None,
            parts: Vec::with_capacity(connections),
        }
    }

    /// Whether `order` differs from the latest one by its tag at most.
    #[inline]
    pub(super) fn is_of(&self, order: &ProxyOrder) -> bool {
        self.order.is_some_and(|latest| latest == ProxyOrder { tag: latest.tag, ..*order })
    }

    /// There are so many connections now, and the latest order may concern the new ones.
    pub(super) fn forget(&mut self, connections: usize) {
        self.order = None;
        self.parts.clear();
        self.parts.reserve(connections);
    }

    /// Another order, whose parts follow.
    pub(super) fn begin(&mut self, op: &Operation) {
        (self.order, self.protocol, self.elements) = (Some(op.order), op.protocol, op.elements);
        let has_network = spec_of(op.algorithm).connections.has_network() && !op.func.is_message();
        self.to_network = has_network.then_some(op.func);
        self.parts.clear();
    }

    /// What a network that reduces is to do on a channel.
    #[inline]
    pub(super) fn reduced(&self, order: &ProxyOrder, channel: ChannelId) -> Reduced {
        let moves = self.to_network.map_or(Moves::Reduce, |func| {
            let index = channel.0.saturating_sub(order.first_channel);
            let part =
                chunk::channel_part(order.count as usize, order.nchannels, index, order.grain_elems as usize);
            let slice_elems = u32::try_from(order.slice_elems).unwrap_or(u32::MAX);
            Moves::of(func, Cut { part_elems: part.len() as u64, slice_elems })
        });
        Reduced { elements: self.elements, moves }
    }
}
