//! What each rank has chosen for its calls: copy engines on which buffer, or kernels.
//!
//! ```text
//! each rank, before it enqueues its k-th such call:   own ring[k] = (k, call, placement);  fence;  compare with the others' ring[k]
//! ```
//! Of two ranks that choose differently one at least sees it, fails, and enqueues nothing; the other's copies wait for an admit that
//! never comes. So nothing is written where it does not belong. A rank that has run ahead by more than a ring is not compared.

use super::{CHOICES, SLOTS};
use crate::plan::{Call, CallRecord, Placement};
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
}

/// Bits of an entry: the number of the call, then its digest, then that of the placement.
const PART_BITS: u32 = 20;
const PART: u64 = (1 << PART_BITS) - 1;

/// Entries of a rank for each rank.
const EACH: u64 = (SLOTS - CHOICES) as u64;

fn entry(number: u64, call: &Call, placement: Option<Placement>) -> u64 {
    let call = u64::from(CallRecord { seq: 0, call: *call }.tag()) & PART;
    // 0 is none.
    let placed = placement.map_or(0, |Placement { window, offset }| {
        let mixed = (u64::from(window) << 48 ^ offset).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed >> (64 - PART_BITS) | 1
    });
    (number + 1) << (2 * PART_BITS) | call << PART_BITS | placed
}

impl Choices {
    /// None made so far.
    pub fn new(table: Arc<SignalTable>, rank: Rank, nranks: u32) -> Choices {
        Choices { table, rank, nranks, made: 0 }
    }

    /// Makes the next choice. Returns how another rank's differs that has made it already.
    pub fn make(&mut self, call: &Call, placement: Option<Placement>) -> Option<Differs> {
        let number = self.made;
        self.made += 1;
        let mine = entry(number, call, placement);
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
        let placed = |window, offset| Some(Placement { window, offset });
        let all = [
            entry(0, &call, None),
            entry(1, &call, None),
            entry(0, &Call { count: 8, ..call }, None),
            entry(0, &call, placed(0, 0)),
            entry(0, &call, placed(1, 0)),
            entry(0, &call, placed(0, 512)),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        assert_eq!(entry(5, &call, placed(2, 9)), entry(5, &call, placed(2, 9)));
    }
}
