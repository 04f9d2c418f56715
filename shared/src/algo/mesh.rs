//! The full mesh: every rank has a connection to and from every other, and a message takes one hop.
//!
//! A schedule over the mesh is a list of [`MeshHop`]s, one message time each. In a hop a rank sends at most one message, of at most one
//! slot, to each peer, and then takes at most one from each. Operands are reduced in rank order, so that a result has the same bits on
//! every rank.
//!
//! Where messages are sent one after another, ranks send in rotated order ([`peers`]), so that no two send to the same peer at a time.
//!
//! # Why it cannot deadlock
//! Give the sends of hop `h` the time `2 h` and its receives the time `2 h + 1`, counted over the whole operation: that is program order
//! on every rank. A receive waits for a send of the same hop, which is earlier. A send on a connection waits for the credit of the
//! message before it on that connection by as many as the protocol has slots: one of an earlier hop, whose receive is earlier too. So
//! every wait looks back in time, and there is no cycle of waits.

use super::wrap;
use crate::abi::Rank;

/// Ranks at the other ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Others {
    /// None.
    None,
    /// Every other rank.
    All,
    /// This one.
    One(Rank),
}

/// Part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// The block with the number of the rank at the other end; of a reduction, with our number.
    Block,
}

/// What a rank sends in a hop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sent {
    /// A part of its input.
    Input(Part),
    /// What it reduced in the hop before, so that it may be sent as it is reduced.
    Result,
}

/// The use of received messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Keep {
    /// Each message is written to its place.
    Each,
    /// All messages and our own input are reduced in rank order, with the post-operation.
    Reduced,
}

/// A rank's messages to its peers, and then its messages from them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MeshHop {
    /// Whom it sends to.
    pub to: Others,
    /// What it sends.
    pub send: Sent,
    /// Whom it receives from.
    pub from: Others,
    /// What becomes of it.
    pub keep: Keep,
    /// The place of the outcome in the output.
    pub dst: Part,
    /// Whether this rank's own input belongs to the outcome: as an operand, or copied.
    pub takes_own: bool,
}

impl Others {
    /// These ranks, seen from `rank` of `n`, in the order in which it sends to them.
    pub fn ranks(self, rank: Rank, n: u32) -> impl Iterator<Item = Rank> + Clone {
        let one = if let Others::One(peer) = self { Some(peer) } else { None };
        let all = if self == Others::All { n } else { 0 };
        one.into_iter().chain(peers(rank, all))
    }
}

/// The `n - 1` others in the order in which `rank` sends to them: `rank + 1`, `rank + 2`, ... modulo `n`.
pub fn peers(rank: Rank, n: u32) -> impl Iterator<Item = Rank> + Clone {
    (1..n).map(move |i| Rank(wrap(rank.0 + i, n)))
}

/// The `n - 1` others in the order in which their sends reach `rank`: `rank - 1`, `rank - 2`, ... modulo `n`.
pub fn sources(rank: Rank, n: u32) -> impl Iterator<Item = Rank> + Clone {
    (1..n).map(move |i| Rank(wrap(rank.0 + n - i, n)))
}

/// The place of `peer` in [`peers`] of `rank`.
#[inline]
pub const fn place_to(rank: Rank, peer: Rank, n: u32) -> usize {
    wrap(peer.0 + n - rank.0, n) as usize - 1
}

/// The place of `peer` among the others in rank order.
#[inline]
pub const fn place_from(rank: Rank, peer: Rank) -> usize {
    (peer.0 - (peer.0 > rank.0) as u32) as usize
}
