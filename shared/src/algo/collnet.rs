//! All-reduce, reduce-scatter and all-gather with in-network reduction (NCCL's "CollNet chain" and "CollNet direct").
//!
//! Each host has a *head*. The sum of its ranks' inputs goes up to it, and from it to the network, which gives every host's head the sum of
//! all. The result goes down the same way. Hosts are connected in one of two [shapes](Shape):
//!
//! ```text
//! chain   host 0:  last -> ... -> head -+-> network        the way up: each adds its input to the sum from the rank below
//!         host 1:         last -> head -+
//!
//! star    host 0:  others  =====> head -+-> network        the head adds the inputs of all that are below it
//!         host 1:  others  =====> head -+
//! ```
//!
//! A chain sends and receives each byte once on each rank; a star has one hop, and its head does the work of all.
//!
//! A reduce-scatter goes up like an all-reduce, one rank's block after the other, and down to that rank alone. An all-gather goes up
//! from the rank whose block it is, and down to all. Each step is one slot of one block ([`Blocks`]). Heads take
//! part in every step: a slot without elements says that a head has nothing to give, or that nothing is for its host.
//!
//! # Why it cannot deadlock
//! An all-reduce is a tree whose root is the network, walked by [`super::tree::pipeline`]: ranks of a chain have one child at most,
//! in a star the head alone has children. The network's step s needs the same slice of every head's way up and an empty slot on
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

/// The row of chains. The network adds what lies in a slot, so that nothing but elements may be there.
pub const CHAIN: Spec = Spec {
    algorithm: Algorithm::CollnetChain,
    aliases: &[],
    on_gpus: &FUNCS,
    on_cpus: &FUNCS,
    kernels: Algorithm::CollnetChain,
    connections: Connections::Chain,
    halved: Protocols::NONE,
    // The chain, and of GPUs what a head gives to the network that reduces.
    proxied: Proxied::Any(&[Func::AllReduce, Func::ReduceScatter, Func::AllGather]),
    order: ReductionOrder::Network,
    at_once: None,
    peers_max: None,
    terms: Terms::Chain,
};

/// The row of stars.
pub const DIRECT: Spec =
    Spec { algorithm: Algorithm::CollnetDirect, connections: Connections::Star, terms: Terms::Star, ..CHAIN };

/// The most ranks below a head of a star of GPUs: a kernel has room for so many, as NCCL's has (`NCCL_MAX_DIRECT_ARITY`).
pub const STAR_BELOW_MAX: usize = 7;

const FUNCS: [Offered; 3] = [
    Offered::new(Func::AllReduce, Protocols::of(&[Protocol::Simple])),
    Offered::new(Func::ReduceScatter, Protocols::of(&[Protocol::Simple])),
    Offered::new(Func::AllGather, Protocols::of(&[Protocol::Simple])),
];

/// How the ranks of a host are connected to its head.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Shape {
    /// Each to the next one.
    #[default]
    Chain,
    /// All to the head.
    Star,
}

/// A rank's neighbours in its host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place<'a> {
    /// The rank above; none above the head, where the network is.
    pub above: Option<Rank>,
    /// The ranks below.
    pub below: &'a [Rank],
}

impl Shape {
    /// The place of `me` among the ranks of its host, which begin with the head; none if it is not among them.
    pub fn place(self, host: &[Rank], me: Rank) -> Option<Place<'_>> {
        let at = host.iter().position(|rank| *rank == me)?;
        Some(match (self, at.checked_sub(1)) {
            (Shape::Star, Some(_)) => Place { above: host.first().copied(), below: &[] },
            (Shape::Star, None) => Place { above: None, below: &host[1..] },
            (Shape::Chain, above) => {
                let below = at + 1..host.len().min(at + 2);
                Place { above: above.map(|above| host[above]), below: &host[below] }
            }
        })
    }
}

/// Whom a rank has above and below, as far as its actions depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HostLinks {
    /// Whether the network is above this rank, instead of another rank.
    pub is_head: bool,
    /// Whether there is a rank below this one.
    pub has_below: bool,
}

impl Place<'_> {
    /// What actions depend on.
    pub fn links(&self) -> HostLinks {
        HostLinks { is_head: self.above.is_none(), has_below: !self.below.is_empty() }
    }
}

/// A rank's action on a chunk on the way up: receives from below, sends to above.
pub fn all_reduce_up(links: &HostLinks) -> Action {
    if links.has_below { Action::RECV_REDUCE_SEND } else { Action::SEND }
}

/// A rank's action on a chunk on the way down: receives from above, sends to below. The head applies the
/// post-operation for its whole host.
pub fn all_reduce_down(links: &HostLinks) -> Action {
    let pass = if links.has_below { Action::RECV_COPY_SEND } else { Action::RECV };
    Action { finish: links.is_head, ..pass }
}

/// Where the rank whose block it is stands, seen from another one of its host.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(pub u32);

impl Owner {
    /// On another host, or not below in this one.
    pub const ELSEWHERE: Owner = Owner(0);
    /// The rank itself.
    pub const HERE: Owner = Owner(1);

    /// Behind the `branch`-th of the ranks below.
    pub const fn below(branch: u32) -> Owner {
        Owner(2 + branch)
    }

    /// Behind which of the ranks below it is.
    #[inline]
    pub const fn branch(self) -> Option<usize> {
        match self.0 {
            0 | 1 => None,
            below => Some(below as usize - 2),
        }
    }

    /// Of a rank, seen from `me`; `host` is the host of `me`, from the head on.
    pub fn of(shape: Shape, host: &[Rank], me: Rank, rank: Rank) -> Owner {
        let at = |rank: Rank| host.iter().position(|other| *other == rank);
        match (shape, at(me), at(rank)) {
            (_, Some(mine), Some(theirs)) if mine == theirs => Owner::HERE,
            (Shape::Chain, Some(mine), Some(theirs)) if mine < theirs => Owner::below(0),
            (Shape::Star, Some(0), Some(theirs)) => Owner::below(theirs as u32 - 1),
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
    fn empty(links: &HostLinks, action: Action) -> Option<BlockHop> {
        links.is_head.then_some(BlockHop { action, is_full: false })
    }
}

/// Of the ranks below, those that a step concerns: in a reduce-scatter on the way down and in an all-gather on the way up the one before the
/// owner of the block, if it is below, otherwise all of `count`.
#[inline]
pub fn branches(func: Func, is_up: bool, owner: Owner, count: usize) -> Range<usize> {
    let is_of_owner = (func == Func::ReduceScatter) != is_up;
    match owner.branch() {
        Some(branch) if is_of_owner => branch..branch + 1,
        _ => 0..count,
    }
}

/// A rank's action on a step of a reduce-scatter on the way up.
pub fn reduce_scatter_up(links: &HostLinks) -> Option<BlockHop> {
    BlockHop::full(all_reduce_up(links))
}

/// The same on the way down. The owner of the block applies the post-operation.
pub fn reduce_scatter_down(links: &HostLinks, owner: Owner) -> Option<BlockHop> {
    match owner {
        Owner::HERE => BlockHop::full(Action { finish: true, ..Action::RECV }),
        Owner::ELSEWHERE => BlockHop::empty(links, Action::DROP),
        _ => BlockHop::full(Action::RECV_SEND),
    }
}

/// A rank's action on a step of an all-gather on the way up.
pub fn all_gather_up(links: &HostLinks, owner: Owner) -> Option<BlockHop> {
    match owner {
        Owner::HERE => BlockHop::full(Action::SEND),
        Owner::ELSEWHERE => BlockHop::empty(links, Action::SEND),
        _ => BlockHop::full(Action::RECV_SEND),
    }
}

/// The same on the way down. The owner gets its own block as well.
pub fn all_gather_down(links: &HostLinks) -> Option<BlockHop> {
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
