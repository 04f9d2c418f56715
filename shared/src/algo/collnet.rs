//! All-reduce, reduce-scatter and all-gather with in-network reduction (NCCL's "CollNet chain").
//!
//! The ranks of each host form a chain. Each adds its input to the partial sum from the rank below it and passes the
//! sum up; the first, the *head*, passes it to the network, which gives every host's head the sum of all. The result
//! goes down the chains again.
//!
//! ```text
//! host 0:  last -> ... -> head -+-> network        the way up
//! host 1:         last -> head -+
//!
//! host 0:  last <- ... <- head <-+- network        the way down
//! host 1:         last <- head <-+
//! ```
//!
//! A reduce-scatter goes up like an all-reduce, one rank's block after the other, and down the chain of that rank alone, as far as to
//! it. An all-gather goes up from the rank whose block it is, and down all chains. Each step is one slot of one block ([`Blocks`]). Heads take
//! part in every step: a slot without elements says that a head has nothing to give, or that nothing is for its host.
//!
//! # Why it cannot deadlock
//! An all-reduce is a tree whose root is the network and whose ranks have one child at most, walked by
//! [`super::tree::pipeline`]. The network's step s needs the same slice of every head's way up and an empty slot on
//! every head's way down: exactly what the root of a tree waits for in its `Up(c)`. It does one after the other, as a
//! root does, and nothing else in between, and releases a slot of the way up when it has finished with it. So the
//! argument of [`super::tree`] holds with the same bound on the lag.
//!
//! The others are walked by the same pipeline, a step taking the place of a chunk of one slice. Heads do all turns of it and the ranks below
//! them some of these, in the same order. So every wait is one of an all-reduce's, or for a slot or a credit of an earlier step.

use super::Action;
use super::spec::{Connections, Offered, Protocols, Proxied, ReductionOrder, Spec, Terms};
use crate::abi::{Algorithm, Func, Protocol, Rank};
use core::ops::Range;

/// The algorithm's row. The network adds what lies in a slot, so that nothing but elements may be there.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::CollnetChain,
    aliases: &[],
    on_gpus: &FUNCS,
    on_cpus: &FUNCS,
    connections: Connections::Chain,
    halved: Protocols::NONE,
    // The chain, and of GPUs what a head gives to the network that reduces.
    proxied: Proxied::Any(&[Func::AllReduce, Func::ReduceScatter, Func::AllGather]),
    order: ReductionOrder::Network,
    at_once: None,
    peers_max: None,
    terms: Terms::Chain,
};

const FUNCS: [Offered; 3] = [
    Offered::new(Func::AllReduce, Protocols::of(&[Protocol::Simple])),
    Offered::new(Func::ReduceScatter, Protocols::of(&[Protocol::Simple])),
    Offered::new(Func::AllGather, Protocols::of(&[Protocol::Simple])),
];

/// A rank's position in its host's chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ChainLinks {
    /// Whether the network is above this rank, instead of another rank.
    pub is_head: bool,
    /// Whether there is a rank below this one.
    pub has_below: bool,
}

/// A rank's action on a chunk on the way up: receives from below, sends to above.
pub fn all_reduce_up(links: &ChainLinks) -> Action {
    if links.has_below { Action::RECV_REDUCE_SEND } else { Action::SEND }
}

/// A rank's action on a chunk on the way down: receives from above, sends to below. The head applies the
/// post-operation for its whole host.
pub fn all_reduce_down(links: &ChainLinks) -> Action {
    let pass = if links.has_below { Action::RECV_COPY_SEND } else { Action::RECV };
    Action { finish: links.is_head, ..pass }
}

/// Where the rank whose block it is stands, seen from another in a chain.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(pub u32);

impl Owner {
    /// On another host, or above in this chain.
    pub const ELSEWHERE: Owner = Owner(0);
    /// The rank itself.
    pub const HERE: Owner = Owner(1);
    /// Below in this chain.
    pub const BELOW: Owner = Owner(2);

    /// Of each rank, seen from `me`; `chain` is its chain, from the head on.
    pub fn of(chain: &[Rank], me: Rank, rank: Rank) -> Owner {
        let place = |rank: Rank| chain.iter().position(|other| *other == rank);
        match (place(me), place(rank)) {
            (Some(mine), Some(theirs)) if mine == theirs => Owner::HERE,
            (Some(mine), Some(theirs)) if mine < theirs => Owner::BELOW,
            _ => Owner::ELSEWHERE,
        }
    }
}

/// A rank's action in one step of a reduce-scatter or an all-gather.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockHop {
    /// The action.
    pub action: Action,
    /// Whether the slots contain the step's elements. Those without are between a head and the network.
    pub is_full: bool,
}

impl BlockHop {
    const fn full(action: Action) -> Option<BlockHop> {
        Some(BlockHop { action, is_full: true })
    }

    /// A head's on a step that does not concern its host.
    fn empty(links: &ChainLinks, action: Action) -> Option<BlockHop> {
        links.is_head.then_some(BlockHop { action, is_full: false })
    }
}

/// A rank's action on a step of a reduce-scatter on the way up.
pub fn reduce_scatter_up(links: &ChainLinks) -> Option<BlockHop> {
    BlockHop::full(all_reduce_up(links))
}

/// The same on the way down. The owner of the block applies the post-operation.
pub fn reduce_scatter_down(links: &ChainLinks, owner: Owner) -> Option<BlockHop> {
    match owner {
        Owner::HERE => BlockHop::full(Action { finish: true, ..Action::RECV }),
        Owner::BELOW => BlockHop::full(Action::RECV_SEND),
        _ => BlockHop::empty(links, Action::DROP),
    }
}

/// A rank's action on a step of an all-gather on the way up.
pub fn all_gather_up(links: &ChainLinks, owner: Owner) -> Option<BlockHop> {
    match owner {
        Owner::HERE => BlockHop::full(Action::SEND),
        Owner::BELOW => BlockHop::full(Action::RECV_SEND),
        _ => BlockHop::empty(links, Action::SEND),
    }
}

/// The same on the way down. The owner gets its own block as well.
pub fn all_gather_down(links: &ChainLinks) -> Option<BlockHop> {
    BlockHop::full(if links.has_below { Action::RECV_COPY_SEND } else { Action::RECV })
}

/// One step: a slot's elements of one rank's block.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BlockStep {
    /// The block.
    pub owner: Rank,
    /// The elements, counted from the block's beginning.
    pub elems: Range<usize>,
}

/// The steps of a reduce-scatter or an all-gather: slot by slot of the part, and of each every rank's block in turn, so that what follows
/// each other in the network is for, or from, several hosts.
#[derive(Clone, Debug)]
pub struct Blocks {
    rest: Range<usize>,
    slice_elems: usize,
    nranks: u32,
    next: u32,
}

impl Blocks {
    /// Of these elements of every block; a slot holds so many.
    pub fn new(part: Range<usize>, slice_elems: usize, nranks: u32) -> Blocks {
        Blocks { rest: part, slice_elems, nranks, next: 0 }
    }

    /// Steps of a part of so many elements.
    pub const fn count(part_elems: usize, slice_elems: usize, nranks: u32) -> usize {
        part_elems.div_ceil(slice_elems) * nranks as usize
    }
}

impl Iterator for Blocks {
    type Item = BlockStep;

    #[inline]
    fn next(&mut self) -> Option<BlockStep> {
        if self.rest.is_empty() {
            return None;
        }
        let end = self.rest.end.min(self.rest.start + self.slice_elems);
        let step = BlockStep { owner: Rank(self.next), elems: self.rest.start..end };
        self.next += 1;
        if self.next == self.nranks {
            (self.next, self.rest.start) = (0, end);
        }
        Some(step)
    }
}
