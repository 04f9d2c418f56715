//! Queued sub-operations: a list for each connection, all in one pool, which grows only with the connections.

use super::coll::Reduced;
use super::counters::SubOp;

/// A sub-operation and its order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) sub: SubOp,
    /// For a network that reduces.
    pub(super) reduced: Reduced,
    pub(super) ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    item: Option<Queued>,
    next: u32,
}

const END: u32 = u32::MAX;

/// All nodes.
pub(super) struct Pool {
    nodes: Vec<Node>,
    /// The first unused node.
    free: u32,
    free_count: usize,
}

/// A list in the pool, first in first out.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(super) const EMPTY: List = List { first: END, last: END };
}

impl Pool {
    pub(super) fn new(capacity: usize) -> Pool {
        let node =
            |index| Node { item: None, next: if index + 1 < capacity { index as u32 + 1 } else { END } };
        let nodes: Vec<Node> = (0..capacity).map(node).collect();
        Pool { free: if capacity > 0 { 0 } else { END }, free_count: capacity, nodes }
    }

    pub(super) fn free_count(&self) -> usize {
        self.free_count
    }

    /// Makes room for so many more.
    pub(super) fn grow(&mut self, more: usize) {
        for _ in 0..more {
            self.nodes.push(Node { item: None, next: self.free });
            self.free = self.nodes.len() as u32 - 1;
        }
        self.free_count += more;
    }

    /// Appends to a list; `false` if the pool is empty.
    pub(super) fn push(&mut self, list: &mut List, item: Queued) -> bool {
        let index = self.free;
        let Some(node) = self.nodes.get_mut(index as usize) else { return false };
        self.free = node.next;
        *node = Node { item: Some(item), next: END };
        self.free_count -= 1;
        match self.nodes.get_mut(list.last as usize) {
            Some(last) => last.next = index,
            None => list.first = index,
        }
        list.last = index;
        true
    }

    /// Takes the first of a list.
    pub(super) fn pop(&mut self, list: &mut List) -> Option<Queued> {
        let index = list.first;
        let node = self.nodes.get_mut(index as usize)?;
        let item = node.item.take();
        list.first = node.next;
        if list.first == END {
            list.last = END;
        }
        node.next = self.free;
        self.free = index;
        self.free_count += 1;
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::{Elements, Moves};
    use oxccl_shared::abi::{DataType, Protocol};
    use oxccl_shared::reduce::CombineKind;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn lists_are_queues_that_share_a_pool(script in proptest::collection::vec((0usize..3, any::<bool>()), 0..200)) {
            let mut pool = Pool::new(2);
            pool.grow(3);
            let mut lists = [List::EMPTY; 3];
            let mut model: [VecDeque<u64>; 3] = Default::default();
            for (ticket, (list, pushes)) in script.into_iter().enumerate() {
                let ticket = ticket as u64;
                if pushes {
                    let sub = SubOp { tag: 0, protocol: Protocol::ALL[0], steps: 1 };
                    let fits = model.iter().map(VecDeque::len).sum::<usize>() < 5;
                    let elements = Elements::new(DataType::I8, CombineKind::Sum);
                    let reduced = Reduced { elements, moves: Moves::Reduce };
                    prop_assert_eq!(pool.push(&mut lists[list], Queued { sub, reduced, ticket }), fits);
                    if fits {
                        model[list].push_back(ticket);
                    }
                } else {
                    prop_assert_eq!(pool.pop(&mut lists[list]).map(|item| item.ticket), model[list].pop_front());
                }
                prop_assert_eq!(pool.free_count(), 5 - model.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
