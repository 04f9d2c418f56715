//! The full mesh: every rank has a connection to and from every other, and data takes one hop.
//!
//! - [`one_shot`] all-reduce: everybody sends its whole input to everybody and reduces all of them. One hop of latency
//!   for `n - 1` times the traffic: for small messages.
//! - [`two_shot`] all-reduce: a reduce-scatter and an all-gather, one hop each. A loop has `n` blocks, block `r` reduced
//!   by rank `r`; traffic as in a ring.
//!
//! Ranks send in rotated order ([`peers`]), so that no two send to the same peer at a time; they reduce in rank order
//! ([`operands`]), so that a result has the same bits on every rank.
//!
//! # Why it cannot deadlock
//! Sends of a phase need no receive of the same phase: with at most [`SLICES_MAX`] slices to a block, the credit of the
//! slice [`STEPS`] back was given in the receiver's previous phase at the latest, and receives wait only for the sends
//! of their own phase.

use crate::abi::Rank;
use crate::fifo::STEPS;

/// The most slices a block may be cut into.
pub const SLICES_MAX: usize = STEPS;

/// The `n - 1` others in the order in which `rank` sends to them: `rank + 1`, `rank + 2`, ... modulo `n`.
pub fn peers(rank: Rank, n: u32) -> impl Iterator<Item = Rank> + Clone {
    (1..n).map(move |i| Rank(super::wrap(rank.0 + i, n)))
}

/// The `n - 1` others in the order in which their sends reach `rank`: `rank - 1`, `rank - 2`, ... modulo `n`.
pub fn sources(rank: Rank, n: u32) -> impl Iterator<Item = Rank> + Clone {
    (1..n).map(move |i| Rank(super::wrap(rank.0 + n - i, n)))
}

/// One operand of a reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// The user's input on this rank.
    Own,
    /// What this peer sent.
    From(Rank),
}

/// The `n` operands of a reduction on `rank`, in rank order on every rank.
pub fn operands(rank: Rank, n: u32) -> impl Iterator<Item = Operand> + Clone {
    (0..n).map(move |r| if r == rank.0 { Operand::Own } else { Operand::From(Rank(r)) })
}

/// One thing to do with one block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DirectHop {
    /// Send the input's block.
    Send {
        /// Whom to send to.
        to: Rank,
        /// The block.
        block: u32,
    },
    /// Reduce the block over [`operands`], apply the post-operation, write it to the output.
    Reduce {
        /// The block.
        block: u32,
    },
    /// Send the output's block, which is complete.
    Forward {
        /// Whom to send to.
        to: Rank,
        /// The block.
        block: u32,
    },
    /// Receive a complete block into the output.
    Recv {
        /// Whom to receive from.
        from: Rank,
        /// The block.
        block: u32,
    },
}

/// All-reduce in one hop: `n - 1` sends and a reduction; the block is always 0, the chunk itself.
pub fn one_shot(rank: Rank, n: u32) -> impl Iterator<Item = DirectHop> + Clone {
    let sends = peers(rank, n).map(|to| DirectHop::Send { to, block: 0 });
    sends.chain(core::iter::once(DirectHop::Reduce { block: 0 }))
}

/// All-reduce in two hops: each rank reduces the block of its own number and sends the result to all.
pub fn two_shot(rank: Rank, n: u32) -> impl Iterator<Item = DirectHop> + Clone {
    let scatter = peers(rank, n).map(|to| DirectHop::Send { to, block: to.0 });
    let reduce = core::iter::once(DirectHop::Reduce { block: rank.0 });
    let gather = peers(rank, n).map(move |to| DirectHop::Forward { to, block: rank.0 });
    let collect = sources(rank, n).map(|from| DirectHop::Recv { from, block: from.0 });
    scatter.chain(reduce).chain(gather).chain(collect)
}
