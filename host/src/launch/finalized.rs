//! Ranks that have finalized: what they did before, and whether a wait for one of them can still end.
//!
//! A rank that finalizes has done its part of everything that it called, and calls nothing more. What it sent last may still be on its way to a
//! rank that waits for it, so its finalize alone ends no wait. It says how far it came to each rank that waits for it, and that rank
//! compares:
//!
//! ```text
//! waits for B, for a while: WaitsFor(B)   ->   B has finalized: Finalized, with its collectives and its slots to and from this rank
//! can it still come? no: fails            ->   Missed: B's finalize fails too; all other ranks name B in their errors
//! ```
//!
//! Where nobody knows for whom a collective waits, as with copy engines of GPUs, a rank says in which it stands (`StandsIn`), and those that
//! finalized before it answer.

use crate::plan::CallRecord;
use oxccl_device::gpu::Awaited;
use oxccl_device::traffic::Counted;
use oxccl_shared::abi::Rank;
use oxccl_shared::sync::{Sys, Word};
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All that a rank has done with another one before it finalized.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LastPart {
    /// Its collectives, with all ranks.
    pub collectives: u64,
    /// Slots that it sent to the other rank.
    pub sent: u64,
    /// Slots that it received from the other rank.
    pub received: u64,
    /// Its messages to the other rank and from it, unless graphs may have made more than it called.
    pub messages: Option<[u64; 2]>,
}

impl LastPart {
    /// Of which only the collectives are known.
    pub fn of_all(collectives: u64) -> LastPart {
        LastPart { collectives, sent: u64::MAX, received: u64::MAX, messages: None }
    }
}

/// What another rank has said.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// What it did.
    pub part: LastPart,
    /// Whether what it sent lies in memory that this rank sees: nothing is on its way.
    pub is_near: bool,
}

impl Finished {
    /// Whether a wait for that rank ends never. `during` is what waits, `ours` what this rank has counted with that rank, where its slots
    /// are those of no other.
    ///
    /// A wait that has looked once more since this rank heard of it may rely on the answer.
    pub fn leaves_waiting(
        &self,
        awaited: Awaited,
        during: Option<CallRecord>,
        ours: Option<Counted>,
    ) -> bool {
        let LastPart { collectives, sent, received, .. } = self.part;
        let collective = during.filter(|record| !record.call.func.is_message());
        let was_not_called = collective.is_some_and(|record| record.seq >= collectives);
        let has_had_all = |ours: Counted| match awaited {
            Awaited::Data => ours.slots[1] >= sent,
            Awaited::Credit => ours.slots[0] > received,
        };
        self.is_near || was_not_called || ours.is_some_and(has_had_all)
    }

    /// Whether it has finalized without its half of a message, before which this rank called so many to it (`is_send`) or from it.
    pub fn lacks_message(&self, is_send: bool, nth: u64) -> bool {
        self.part.messages.is_some_and(|[to_us, from_us]| nth >= if is_send { from_us } else { to_us })
    }
}

/// This rank has finalized.
const COUNTED: u32 = 1;
/// The same, and graphs may have made messages that nobody counts.
const REPLAYED: u32 = 2;

/// Who has finalized, by what is known here.
#[derive(Default)]
pub struct Finalized {
    /// Nonzero once this rank has: [`COUNTED`] or [`REPLAYED`]. Writer: who finalizes.
    here: Word<u32, Sys>,
    /// Nonzero once another has said so. Writer: the monitor.
    elsewhere: Word<u32, Sys>,
    said: Mutex<Vec<(Rank, Finished)>>,
    /// The collectives in which others have stood.
    standing: Mutex<Vec<(Rank, u64)>>,
}

impl Finalized {
    /// This rank has done all its part. `replays` says whether graphs may have made more messages than it called.
    pub fn begin(&self, replays: bool) {
        // RELEASE pairs with ACQUIRE in `has_begun`: the monitor then reads this rank's counters, which are complete.
        self.here.store_release(if replays { REPLAYED } else { COUNTED });
    }

    /// Whether its messages are those that it has called.
    pub fn has_counted_messages(&self) -> bool {
        // ACQUIRE pairs with RELEASE in `begin`.
        self.here.load_acquire() == COUNTED
    }

    /// Whether this rank has done all its part.
    pub fn has_begun(&self) -> bool {
        // ACQUIRE pairs with RELEASE in `begin`.
        self.here.load_acquire() != 0
    }

    /// Another rank has said that it has.
    pub fn note(&self, rank: Rank, finished: Finished) {
        let mut said = self.lock();
        said.retain(|(other, _)| *other != rank);
        said.push((rank, finished));
        drop(said);
        // RELEASE pairs with ACQUIRE in `of`.
        self.elsewhere.store_release(1);
    }

    /// What a rank that has finalized has said.
    pub fn of(&self, rank: Rank) -> Option<Finished> {
        // ACQUIRE pairs with RELEASE in `note`.
        if self.elsewhere.load_acquire() == 0 {
            return None;
        }
        self.lock().iter().find(|(other, _)| *other == rank).map(|(_, finished)| *finished)
    }

    /// A rank, with its number of collectives, that has finalized, or left, without the collective of this number.
    pub fn without(&self, seq: u64) -> Option<(Rank, u64)> {
        let said = self.lock();
        let part = |(rank, finished): &(Rank, Finished)| (*rank, finished.part.collectives);
        said.iter().map(part).find(|(_, collectives)| *collectives <= seq)
    }

    /// Another rank stands in the collective of this number.
    pub fn note_standing(&self, rank: Rank, seq: u64) {
        let mut standing = self.standing();
        standing.retain(|(other, _)| *other != rank);
        standing.push((rank, seq));
    }

    /// The ranks that have stood in a collective after the first so many.
    pub fn standing_after(&self, collectives: u64) -> Vec<Rank> {
        let standing = self.standing();
        standing.iter().filter(|(_, seq)| *seq >= collectives).map(|(rank, _)| *rank).collect()
    }

    fn standing(&self) -> MutexGuard<'_, Vec<(Rank, u64)>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Rank, Finished)>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, RedOp};

    const FAR: Finished = Finished { part: LastPart { messages: Some([4, 6]), ..PART }, is_near: false };
    const PART: LastPart = LastPart { collectives: 3, sent: 10, received: 20, messages: None };

    fn record(func: Func, seq: u64) -> Option<CallRecord> {
        let call = Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(1), count: 8 };
        Some(CallRecord { seq, call })
    }

    fn counted(sent: u64, received: u64) -> Option<Counted> {
        Some(Counted { slots: [sent, received], ..Counted::default() })
    }

    #[test]
    fn what_is_on_its_way_over_a_network_is_waited_for() {
        let message = record(Func::Recv, 3);
        assert!(!FAR.leaves_waiting(Awaited::Data, message, counted(0, 9)));
        assert!(FAR.leaves_waiting(Awaited::Data, message, counted(0, 10)));
        let message = record(Func::Send, 3);
        assert!(!FAR.leaves_waiting(Awaited::Credit, message, counted(20, 0)), "all was received");
        assert!(FAR.leaves_waiting(Awaited::Credit, message, counted(21, 0)));
        assert!(!FAR.leaves_waiting(Awaited::Data, message, None), "slots of others are among them");
    }

    /// A rank may have sent a message that this one never takes: its slots say nothing of a collective then.
    #[test]
    fn a_collective_that_was_not_called_does_not_come() {
        assert!(FAR.leaves_waiting(Awaited::Data, record(Func::AllReduce, 3), counted(0, 4)));
        assert!(!FAR.leaves_waiting(Awaited::Data, record(Func::AllReduce, 2), counted(0, 4)));
    }

    #[test]
    fn messages_that_it_did_not_call_do_not_come() {
        let lacks = |is_send, nth| FAR.lacks_message(is_send, nth);
        assert_eq!(
            [lacks(false, 3), lacks(false, 4), lacks(true, 5), lacks(true, 6)],
            [false, true, false, true]
        );
        let unknown = Finished { part: PART, ..FAR };
        assert!(!unknown.lacks_message(true, 99), "graphs may have made more");
    }

    #[test]
    fn in_shared_memory_nothing_is_on_its_way() {
        let near = Finished { is_near: true, ..FAR };
        assert!(near.leaves_waiting(Awaited::Data, record(Func::Recv, 0), counted(0, 9)));
    }

    #[test]
    fn who_stands_in_a_later_collective_is_known() {
        let finalized = Finalized::default();
        [(1, 4), (2, 9), (1, 5), (3, 4)]
            .iter()
            .for_each(|&(rank, seq)| finalized.note_standing(Rank(rank), seq));
        assert_eq!(finalized.standing_after(5), [Rank(2), Rank(1)]);
    }

    #[test]
    fn the_last_word_of_a_rank_counts() {
        let finalized = Finalized::default();
        assert!(finalized.of(Rank(1)).is_none() && !finalized.has_begun());
        finalized.note(Rank(1), Finished { is_near: true, ..FAR });
        finalized.note(Rank(1), FAR);
        assert!(finalized.of(Rank(1)).is_some_and(|finished| !finished.is_near));
        assert!(finalized.of(Rank(2)).is_none());
        assert_eq!((finalized.without(2), finalized.without(3)), (None, Some((Rank(1), 3))));
        finalized.begin(true);
        assert!(finalized.has_begun() && !finalized.has_counted_messages());
        finalized.begin(false);
        assert!(finalized.has_counted_messages());
    }
}
