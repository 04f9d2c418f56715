//! Recursive doubling: an all-reduce or a barrier in as many exchanges as the number of ranks has bits, each of the whole buffer, for messages
//! whose time is that of the exchanges (Thakur, Rabenseifner, Gropp: "Optimization of Collective Communication Operations in MPICH", 2005).
//!
//! As many ranks as the largest power of two have *seats*. Of `n` ranks beyond it, each of the first `2 r` ranks of even number sends its input
//! to the next rank, which has the seat of both. In exchange `i` the ranks at seats that differ by bit `i` exchange what they have, and both
//! reduce it, the lower seat's first. So what a rank has is always of neighbours, reduced in pairs, and then pairs of pairs: all ranks have
//! the same bits in the end.
//!
//! # Why it cannot deadlock
//! Number the steps of a slice, the same on every rank: the sends to those with seats, the exchanges, the sends of the outcome. A receive waits
//! for a send of the same step, and who exchanges sends before it receives. A connection carries one message of a slice each way, so the
//! credit that a send waits for is of an earlier slice, or of an earlier operation on the connection. So every wait looks back, but for
//! receives, which wait for sends that do.

use super::spec::{Connections, Offered, Protocols, Proxied, ReductionOrder, Spec, Terms};
use crate::abi::{Algorithm, Func, Protocol, Rank};

/// The algorithm's row.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::Doubling,
    aliases: &[],
    // Between GPUs one hop takes less than a second one.
    on_gpus: &[],
    on_cpus: &[
        Offered::new(Func::AllReduce, Protocols::of(&[Protocol::Simple])),
        Offered::new(Func::Barrier, Protocols::of(&[Protocol::Simple])),
    ],
    kernels: Algorithm::Doubling,
    connections: Connections::Mesh,
    halved: Protocols::NONE,
    proxied: Proxied::Any(&[Func::AllReduce, Func::Barrier]),
    order: ReductionOrder::Pairs,
    at_once: None,
    peers_max: None,
    terms: Terms::Doubling,
};

/// What a rank does with one other rank: it sends what it has, receives, or both, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// The other rank.
    pub peer: Rank,
    /// Whether it sends.
    pub sends: bool,
    /// What it does with what it receives, if it does.
    pub received: Option<Use>,
}

/// The use of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Use {
    /// It is the outcome.
    Outcome,
    /// It is reduced with what this rank has.
    Reduced {
        /// Whether what this rank has comes first.
        own_first: bool,
        /// Whether the result is the outcome, so that it gets the post-operation.
        is_last: bool,
    },
}

/// Exchanges of each of `n` ranks that has a seat.
#[inline]
pub const fn exchanges(n: u32) -> u32 {
    n.ilog2()
}

/// Steps of the longest way through `n` ranks, two at least.
pub const fn depth(n: u32) -> u32 {
    exchanges(n) + if n.is_power_of_two() { 0 } else { 2 }
}

/// The steps of `rank` among `n`, two at least. A barrier is an all-reduce of nothing.
#[inline]
pub fn all_reduce(rank: Rank, n: u32) -> impl Iterator<Item = Step> {
    let seats = Seats { extra: n - (1 << exchanges(n)) };
    let (pair, is_paired) = (Rank(rank.0 ^ 1), rank.0 < 2 * seats.extra);
    let is_guest = is_paired && rank.0.is_multiple_of(2);
    let is_host = is_paired && !is_guest;
    let reduced = |own_first, is_last| Some(Use::Reduced { own_first, is_last });
    let first = match (is_guest, is_host) {
        (true, _) => Some(Step { peer: pair, sends: true, received: None }),
        (_, true) => Some(Step { peer: pair, sends: false, received: reduced(false, false) }),
        _ => None,
    };
    let rounds = if is_guest { 0 } else { exchanges(n) };
    let seat = seats.of(rank);
    let middle = (0..rounds).map(move |round| Step {
        peer: seats.rank(seat ^ 1 << round),
        sends: true,
        received: reduced(seat >> round & 1 == 0, round + 1 == rounds),
    });
    let last = match (is_guest, is_host) {
        (true, _) => Some(Step { peer: pair, sends: false, received: Some(Use::Outcome) }),
        (_, true) => Some(Step { peer: pair, sends: true, received: None }),
        _ => None,
    };
    first.into_iter().chain(middle).chain(last)
}

/// Who sits where, if there are so many ranks beyond a power of two.
#[derive(Clone, Copy)]
struct Seats {
    extra: u32,
}

impl Seats {
    fn of(self, rank: Rank) -> u32 {
        if rank.0 < 2 * self.extra { rank.0 / 2 } else { rank.0 - self.extra }
    }

    fn rank(self, seat: u32) -> Rank {
        Rank(if seat < self.extra { 2 * seat + 1 } else { seat + self.extra })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    /// A rank in the middle of its slices. What it has of one are the ranks whose inputs are in it, in the order of the reduction.
    struct Walk {
        rank: u32,
        steps: VecDeque<Step>,
        has: Vec<u32>,
        told: bool,
        is_outcome: bool,
        slices: usize,
    }

    impl Walk {
        fn begin(rank: u32, n: u32, slices: usize) -> Walk {
            let steps = all_reduce(Rank(rank), n).collect();
            Walk { rank, steps, has: vec![rank], told: false, is_outcome: false, slices }
        }

        /// Takes part of a step, if the connections allow it, which have so many slots. Returns whether it did.
        fn advance(&mut self, n: u32, slots: usize, wires: &mut [VecDeque<Vec<u32>>]) -> bool {
            let Some(step) = self.steps.front().copied() else { return false };
            let wire = |from: u32, to: u32| (from * n + to) as usize;
            if step.sends && !self.told {
                let out = &mut wires[wire(self.rank, step.peer.0)];
                if out.len() == slots {
                    return false;
                }
                out.push_back(self.has.clone());
                self.told = true;
                return true;
            }
            if let Some(used) = step.received {
                let Some(theirs) = wires[wire(step.peer.0, self.rank)].pop_front() else { return false };
                self.has = match used {
                    Use::Outcome => theirs,
                    Use::Reduced { own_first: true, .. } => [&self.has[..], &theirs].concat(),
                    Use::Reduced { own_first: false, .. } => [&theirs[..], &self.has].concat(),
                };
                self.is_outcome |= matches!(used, Use::Outcome | Use::Reduced { is_last: true, .. });
            }
            self.told = false;
            self.steps.pop_front();
            if self.steps.is_empty() {
                assert!(
                    self.is_outcome && self.has.iter().copied().eq(0..n),
                    "rank {} of {n}: {:?}",
                    self.rank,
                    self.has
                );
                if self.slices > 1 {
                    *self = Walk::begin(self.rank, n, self.slices - 1);
                }
            }
            true
        }
    }

    #[test]
    fn every_rank_has_all_inputs_in_rank_order_and_nobody_waits_for_ever() {
        for (n, slots) in (2..70).flat_map(|n| [(n, 1), (n, 3)]) {
            let mut ranks: Vec<Walk> = (0..n).map(|rank| Walk::begin(rank, n, 4)).collect();
            let mut wires = vec![VecDeque::new(); (n * n) as usize];
            // Each goes as far as it can, the first ones first.
            while ranks.iter_mut().any(|rank| rank.advance(n, slots, &mut wires)) {}
            assert!(ranks.iter().all(|rank| rank.steps.is_empty()), "{n} ranks, {slots} slots");
            assert!(wires.iter().all(VecDeque::is_empty), "{n} ranks: everything has been received");
        }
    }

    #[test]
    fn no_rank_has_more_steps_than_the_depth() {
        for n in 2..70 {
            let longest = (0..n).map(|rank| all_reduce(Rank(rank), n).count() as u32).max();
            assert_eq!(longest, Some(depth(n)), "{n} ranks");
        }
    }
}
