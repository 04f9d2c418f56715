//! Who receives from whom, reduces, and sends to whom.
//!
//! ```text
//! rank, counted from the root     0 <- 1      parent of v: v without its lowest bit
//!                                 0 <- 2 <- 3
//!                                 0 <- 4 <- 5, 4 <- 6 <- 7
//! ```
//! All-reduce: every rank sends its input, reduced with its children's, to its parent; the root's value goes the same way back. A slice
//! goes up and comes back before the next one begins, so no connection needs more than one slot.

use oxccl_shared::abi::Rank;
use oxccl_shared::algo::Action;

/// Nobody, the parent or all children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peers {
    Nobody,
    Parent,
    Children,
}

/// One step of a rank with a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub action: Action,
    pub from: Peers,
    pub to: Peers,
}

/// A rank's place in the tree.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Counted from the root.
    v: u32,
    root: u32,
    nranks: u32,
}

impl Place {
    pub fn new(Rank(rank): Rank, Rank(root): Rank, nranks: u32) -> Place {
        let v = if rank >= root { rank - root } else { rank + nranks - root };
        Place { v, root, nranks }
    }

    fn rank_of(&self, v: u32) -> Rank {
        let rank = v + self.root;
        Rank(if rank >= self.nranks { rank - self.nranks } else { rank })
    }

    /// None at the root.
    pub fn parent(&self) -> Option<Rank> {
        (self.v != 0).then(|| self.rank_of(self.v & (self.v - 1)))
    }

    /// Each is the root of a subtree; the smallest subtree comes first.
    pub fn children(&self) -> impl Iterator<Item = Rank> {
        let place = *self;
        let below = if self.v == 0 { 32 } else { self.v.trailing_zeros() };
        (0..below)
            .map(move |bit| place.v as u64 + (1 << bit))
            .take_while(move |v| *v < place.nranks as u64)
            .map(move |v| place.rank_of(v as u32))
    }

    fn has_children(&self) -> bool {
        self.children().next().is_some()
    }

    /// What it does with each slice of an all-reduce; the root is rank 0.
    pub fn all_reduce(&self) -> impl Iterator<Item = Step> {
        let up = match (self.parent().is_some(), self.has_children()) {
            (false, _) => {
                Step { action: Action::RECV_REDUCE_COPY_SEND, from: Peers::Children, to: Peers::Children }
            }
            (true, true) => {
                Step { action: Action::RECV_REDUCE_SEND, from: Peers::Children, to: Peers::Parent }
            }
            (true, false) => Step { action: Action::SEND, from: Peers::Nobody, to: Peers::Parent },
        };
        let down = self.parent().is_some().then(|| self.pass_down());
        core::iter::once(up).chain(down)
    }

    /// What it does with each slice of a broadcast.
    pub fn broadcast(&self) -> impl Iterator<Item = Step> {
        let root = Step { action: Action::COPY_SEND, from: Peers::Nobody, to: Peers::Children };
        core::iter::once(if self.parent().is_some() { self.pass_down() } else { root })
    }

    fn pass_down(&self) -> Step {
        match self.has_children() {
            true => Step { action: Action::RECV_COPY_SEND, from: Peers::Parent, to: Peers::Children },
            false => Step { action: Action::RECV, from: Peers::Parent, to: Peers::Nobody },
        }
    }
}
