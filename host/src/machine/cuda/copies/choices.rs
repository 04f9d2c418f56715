//! What each rank has chosen for its calls: copy engines or a symmetric kernel on which buffers, or kernels with slots.
//!
//! ```text
//! each rank, before it enqueues its k-th such call:   own ring[k] = (k, call, choice);  fence;  compare with the others' ring[k]
//! ```
//! Of two ranks that choose differently one at least sees it, fails, and enqueues nothing; the other's copies wait for an admit that
//! never comes. So nothing is written where it does not belong. A rank that has run ahead by more than a ring is not compared.

use super::words::{CHOICES, SLOTS};
use crate::plan::{Call, CallPlan, CallRecord, Placement};
use crate::transport::p2p::SignalTable;
use oxccl_shared::abi::Rank;
use oxccl_shared::sync::{Sys, Word, fence_full};
use std::sync::Arc;

/// In what a rank differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Differs {
    /// It made another call.
    Call(Rank),
    /// Its buffer lies elsewhere in a window, or in none.
    Placement(Rank),
}

/// This rank's choices and those of the others.
pub(super) struct Choices {
    table: Arc<SignalTable>,
    rank: Rank,
    nranks: u32,
    made: u64,
    /// Before those of the present calls.
    made_before: u64,
}

/// How a call goes, and where its buffers lie that others touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// By kernels with slots, on any buffers.
    Slots,
    /// By copy engines.
    Copies(Placement),
    /// By a symmetric kernel.
    Symmetric([Option<Placement>; 2]),
}

impl Choice {
    /// What a plan says.
    pub fn of(plan: &CallPlan) -> Choice {
        match plan {
            CallPlan::CopyEngines(placement) => Choice::Copies(*placement),
            CallPlan::Symmetric(plan) => Choice::Symmetric(plan.touched),
            CallPlan::Messages | CallPlan::Collective(_) | CallPlan::Local => Choice::Slots,
        }
    }

    /// So many bits of it; 0 for slots alone.
    fn digest(self) -> u64 {
        let mix = |seed: u64, placement: Option<Placement>| {
            let of =
                placement.map_or(u64::MAX, |Placement { window, offset }| u64::from(window) << 48 ^ offset);
            (seed.rotate_left(29) ^ of.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let mixed = match self {
            Choice::Slots => return 0,
            Choice::Copies(placement) => mix(0, Some(placement)),
            Choice::Symmetric([send, recv]) => mix(mix(1, send), recv),
        };
        mixed >> (64 - PART_BITS) | 1
    }
}

/// Bits of an entry: the number of the call, then its digest, then that of the choice.
const PART_BITS: u32 = 20;
const PART: u64 = (1 << PART_BITS) - 1;

/// Entries of a rank for each rank.
const EACH: u64 = (SLOTS - CHOICES) as u64;

fn entry(number: u64, call: &Call, choice: Choice) -> u64 {
    let call = u64::from(CallRecord { seq: 0, call: *call }.tag()) & PART;
    (number + 1) << (2 * PART_BITS) | call << PART_BITS | choice.digest()
}

impl Choices {
    /// None made so far.
    pub fn new(table: Arc<SignalTable>, rank: Rank, nranks: u32) -> Choices {
        Choices { table, rank, nranks, made: 0, made_before: 0 }
    }

    /// The calls whose choices are made next belong together.
    pub fn begin(&mut self) {
        self.made_before = self.made;
    }

    /// The calls since the latest beginning were not made: who repeats them makes the same choices again.
    pub fn take_back(&mut self) {
        self.made = self.made_before;
    }

    /// Makes the next choice. Returns how another rank's differs that has made it already.
    pub fn make(&mut self, call: &Call, choice: Choice) -> Option<Differs> {
        let number = self.made;
        self.made += 1;
        let mine = entry(number, call, choice);
        // RELEASE pairs with ACQUIRE below, on another rank.
        self.word(self.rank, number)?.store_release(mine);
        fence_full();
        for peer in (0..self.nranks).map(Rank).filter(|peer| *peer != self.rank) {
            // ACQUIRE pairs with RELEASE above, on another rank.
            let theirs = self.word(peer, number)?.load_acquire();
            if theirs >> (2 * PART_BITS) != mine >> (2 * PART_BITS) || theirs == mine {
                continue;
            }
            let is_same_call = theirs >> PART_BITS & PART == mine >> PART_BITS & PART;
            return Some(if is_same_call { Differs::Placement(peer) } else { Differs::Call(peer) });
        }
        None
    }

    /// A rank's word for a call. Its ring lies in the words to itself.
    fn word(&self, of: Rank, number: u64) -> Option<&Word<u64, Sys>> {
        let at = number % (EACH * u64::from(self.nranks));
        self.table.word(of, Rank((at / EACH) as u32), CHOICES + (at % EACH) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{DataType, Func, RedOp};

    #[test]
    fn entries_tell_number_call_and_placement_apart() {
        let call =
            Call { func: Func::AllGather, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: 7 };
        let placed = |window, offset| Placement { window, offset };
        let copies = |window, offset| Choice::Copies(placed(window, offset));
        let symmetric = |send, recv| Choice::Symmetric([send, recv]);
        let all = [
            entry(0, &call, Choice::Slots),
            entry(1, &call, Choice::Slots),
            entry(0, &Call { count: 8, ..call }, Choice::Slots),
            entry(0, &call, copies(0, 0)),
            entry(0, &call, copies(1, 0)),
            entry(0, &call, copies(0, 512)),
            entry(0, &call, symmetric(None, Some(placed(0, 0)))),
            entry(0, &call, symmetric(Some(placed(0, 0)), None)),
            entry(0, &call, symmetric(Some(placed(0, 0)), Some(placed(0, 0)))),
            entry(0, &call, symmetric(Some(placed(0, 0)), Some(placed(0, 16)))),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        assert_eq!(entry(5, &call, copies(2, 9)), entry(5, &call, copies(2, 9)));
    }
}
