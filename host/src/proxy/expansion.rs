//! What an order puts on which connection. The next order mostly puts the same there: programs repeat their operations.

use super::order::{Elements, Operation, ProxyOrder};
use oxccl_shared::abi::{DataType, Protocol};
use oxccl_shared::reduce::CombineKind;

/// The latest order that meant something, expanded.
pub(super) struct Expansion {
    /// All of it matters but the tag.
    order: Option<ProxyOrder>,
    pub(super) protocol: Protocol,
    pub(super) elements: Elements,
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
        self.parts.clear();
    }
}
