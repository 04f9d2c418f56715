//! The double binary tree (Sanders, Speck, Träff: "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan", 2009): two trees over the same ranks, each carrying half of the data, so built that a rank that has
//! children in one is a leaf in the other and all links carry about the same.
//!
//! An all-reduce goes up a tree reducing and comes down it broadcasting. The root turns the value round in one action,
//! straight from the reduction to the slots of its children, so it has no second half.
//!
//! One executor, a thread of a CPU or a block of a GPU, runs both halves in turn, as [`pipeline`] says: the ups run ahead of the downs.
//!
//! # Why the pipeline cannot deadlock
//! Let all sequential ranks use one lag `L`, with chunks of at most `S` slices. Give `Up(c)` the time `c` and `Down(c)`
//! the time `c + L - 1/2`: that is program order. Then each wait looks back, in time, or at one time in slices, or at one
//! time and slice along the tree:
//! - `Up(c)` waits for the same slice of the children's `Up(c)`, nearer to the leaves, and for a credit `n` slices
//!   back in the parent's ups, of a protocol with `n` slots;
//! - `Down(c)` waits for the same slice of the parent's `Down(c)`, nearer to the root (or of the root's `Up(c)`, at an
//!   earlier time since `L >= 1`), and for a credit `n` slices back in the children's downs;
//! - the root's `Up(c)` waits also for that last credit: it lies at least `n / S` whole chunks back, in
//!   `Down(c - n / S)` or before, which is earlier if `L <= n / S`: hence [`lag_max`].
//!
//! Two ranks with *different* lags do deadlock (a parent ahead by three waits for a child that is ahead by one), so the lag is part of the plan.

use super::Action;
use super::spec::{Connections, Offered, Protocols, Proxied, ReductionOrder, Spec, Terms};
use crate::abi::{Algorithm, Func, Rank};

/// The algorithm's row.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::Tree,
    aliases: &[],
    on_gpus: &[Offered::new(Func::AllReduce, Protocols::ALL)],
    on_cpus: &[Offered::new(Func::AllReduce, Protocols::ALL)],
    kernels: Algorithm::Tree,
    connections: Connections::Tree,
    halved: Protocols::NONE,
    proxied: Proxied::Any(&[Func::AllReduce]),
    order: ReductionOrder::Tree,
    at_once: None,
    peers_max: None,
    terms: Terms::Tree,
};

/// Children that a rank can have in one tree. The binary tree uses two; the third is for a chain inside a node.
pub const ARITY_MAX: usize = 3;

/// A rank's neighbours in one tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TreeLinks {
    /// The parent; none at the root.
    pub up: Option<Rank>,
    /// The children, in the order in which what they send is reduced.
    pub down: [Option<Rank>; ARITY_MAX],
}

impl TreeLinks {
    /// Whether this rank is the root.
    #[inline]
    pub const fn is_root(&self) -> bool {
        self.up.is_none()
    }

    /// Whether this rank has no children.
    #[inline]
    pub const fn is_leaf(&self) -> bool {
        self.down[0].is_none() && self.down[1].is_none() && self.down[2].is_none()
    }

    fn map(self, rename: impl Fn(Rank) -> Rank) -> TreeLinks {
        TreeLinks { up: self.up.map(&rename), down: self.down.map(|child| child.map(&rename)) }
    }
}

/// The neighbours of `rank` in both trees over the ranks `0..n`.
///
/// - Each tree spans all ranks and is [`depth`]`(n)` deep; a rank has at most two children in it.
/// - The first tree's root is rank 0. The second is its mirror image (root `n - 1`) for even `n`, and the first tree
///   shifted by one rank (root 1, if there is one) for odd `n`.
/// - Even `n`: every rank has children in exactly one tree. Odd `n > 1`: so does every rank but rank 0, which has one child
///   in each. So no rank has more than two children over both trees.
pub fn double_binary_tree(rank: Rank, n: u32) -> [TreeLinks; 2] {
    let second = if n.is_multiple_of(2) {
        let mirror = |r: Rank| Rank(n - 1 - r.0);
        binary_tree(mirror(rank), n).map(mirror)
    } else {
        let back = |r: Rank| Rank(if r.0 == 0 { n - 1 } else { r.0 - 1 });
        let forth = |r: Rank| Rank(super::wrap(r.0 + 1, n));
        binary_tree(back(rank), n).map(forth)
    };
    [binary_tree(rank, n), second]
}

/// Links between the root and the leaf farthest from it, in either tree over `n` ranks: `ceil(log2 n)`.
pub const fn depth(n: u32) -> u32 {
    if n <= 1 { 0 } else { (n - 1).ilog2() + 1 }
}

/// One binary tree in which odd ranks are leaves and even ranks inner nodes.
///
/// A rank whose lowest set bit is `b` heads the ranks strictly between `rank - b` and `rank + b`: its children are
/// `rank - b/2` and `rank + b/2`. Where the right one lies beyond the last rank, the first of `rank + b/4, rank + b/8, ...`
/// that exists heads all ranks that do. Rank 0 has the largest power of two below `n` as its only child.
fn binary_tree(rank: Rank, n: u32) -> TreeLinks {
    let Rank(r) = rank;
    if n <= 1 {
        return TreeLinks::default();
    }
    if r == 0 {
        return TreeLinks { up: None, down: [Some(Rank(1 << (n - 1).ilog2())), None, None] };
    }
    let bit = r & r.wrapping_neg();
    let below = r ^ bit;
    let head = below | (bit << 1);
    let up = if head < n { head } else { below };

    let left = (bit > 1).then(|| Rank(r - bit / 2));
    let mut step = bit / 2;
    while step > 0 && r + step >= n {
        step /= 2;
    }
    let right = (step > 0).then(|| Rank(r + step));
    TreeLinks { up: Some(Rank(up)), down: [left, right, None] }
}

/// One action on one chunk in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TreeHop {
    /// What to do; `recv` means from each of `from`, `send` means to each of `to`.
    pub action: Action,
    /// Whom to receive from, in the order of reduction.
    pub from: [Option<Rank>; ARITY_MAX],
    /// Whom to send to.
    pub to: [Option<Rank>; ARITY_MAX],
}

/// The first half of an all-reduce: reduce the children's chunks with the own one and send the value up; at the root,
/// finish it, write it and send it down.
pub fn all_reduce_up(links: &TreeLinks) -> TreeHop {
    let action = match (links.is_root(), links.is_leaf()) {
        (true, true) => Action::COPY_FINISH,
        (true, false) => Action::RECV_REDUCE_COPY_SEND,
        (false, true) => Action::SEND,
        (false, false) => Action::RECV_REDUCE_SEND,
    };
    let to = if links.is_root() { links.down } else { [links.up, None, None] };
    TreeHop { action, from: links.down, to }
}

/// The second half of an all-reduce: write what the parent sends and send it on down. None at the root, which did both in
/// its first half.
pub fn all_reduce_down(links: &TreeLinks) -> Option<TreeHop> {
    if links.is_root() {
        return None;
    }
    let action = if links.is_leaf() { Action::RECV } else { Action::RECV_COPY_SEND };
    Some(TreeHop { action, from: [links.up, None, None], to: links.down })
}

/// One turn of a sequential executor, naming the chunk it works on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Turn {
    /// Run the hop of [`all_reduce_up`].
    Up(usize),
    /// Run the hop of [`all_reduce_down`], if the rank has one.
    Down(usize),
}

/// The greatest lag that cannot deadlock when a chunk has up to `slices_per_chunk` slices (at most `slots`), by a protocol with so many
/// slots; see the module's argument.
pub const fn lag_max(slices_per_chunk: usize, slots: usize) -> usize {
    if slices_per_chunk == 0 || slices_per_chunk >= slots { 1 } else { slots / slices_per_chunk }
}

/// Both halves of an all-reduce of `nchunks` chunks in one sequence: `Up(c)` for the first `lag` chunks, then `Down` and
/// `Up` in turn, then the remaining `Down`s. `Down(c)` comes right after `Up(c + lag - 1)`.
///
/// `lag` is at least 1 (0 means 1), at most [`lag_max`], and the same on every rank.
pub fn pipeline(nchunks: usize, lag: usize) -> Pipeline {
    Pipeline { up: 0, down: 0, nchunks, lag: if lag == 0 { 1 } else { lag } }
}

/// The iterator of [`pipeline`].
#[derive(Clone, Copy, Debug)]
pub struct Pipeline {
    up: usize,
    down: usize,
    nchunks: usize,
    lag: usize,
}

impl Iterator for Pipeline {
    type Item = Turn;

    #[inline]
    fn next(&mut self) -> Option<Turn> {
        if self.up < self.nchunks && self.up - self.down < self.lag {
            self.up += 1;
            Some(Turn::Up(self.up - 1))
        } else if self.down < self.nchunks {
            self.down += 1;
            Some(Turn::Down(self.down - 1))
        } else {
            None
        }
    }
}
