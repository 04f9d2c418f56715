//! Clear-to-send (CTS) entries: for each posted receive, the receiver writes the buffer's address into the sender's
//! memory.
//!
//! ```text
//! receiver: irecv n  --RDMA write-->  table[n % 32] of the sender: {address, length and key, n + 1, check}
//! sender:   isend n waits for it, then --RDMA write--> address, with the length as immediate
//! ```
//! So the sender never sends before the receive is posted, and nothing is copied. The bus may make parts of a 32-byte
//! write visible before others: an entry counts only once its check word matches the other words.

use crate::net::REQUESTS_MAX;
use oxccl_shared::sync::{Sys, Word};

/// Seed of the check word: no mixture of an old and a new entry yields it by accident.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The buffer of one posted receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cts {
    /// Address in the receiver's address space.
    pub address: u64,
    pub max_bytes: u32,
    /// The receiver's key for that memory.
    pub key: u32,
}

/// An entry as it lies in memory.
#[repr(C, align(32))]
pub(super) struct Entry([Word<u64, Sys>; 4]);

/// All entries: message `n` uses entry `n % 32`, which is free again when message `n` is done.
#[repr(C, align(64))]
pub(super) struct CtsTable(pub [Entry; REQUESTS_MAX]);

const _: () = {
    assert!(size_of::<Entry>() == 32 && align_of::<Entry>() == 32);
    assert!(size_of::<CtsTable>() == 32 * REQUESTS_MAX);
};

impl Cts {
    fn words(&self, message: u64) -> [u64; 4] {
        let place = u64::from(self.max_bytes) << 32 | u64::from(self.key);
        let turn = message + 1;
        [self.address, place, turn, check(self.address, place, turn)]
    }
}

fn check(address: u64, place: u64, turn: u64) -> u64 {
    (address ^ place.rotate_left(17) ^ SEED).wrapping_mul(turn | 1) ^ turn.rotate_left(32)
}

impl CtsTable {
    /// A table without entries.
    pub(super) fn new() -> Box<CtsTable> {
        let empty = || Entry([0; 4].map(Word::new));
        Box::new(CtsTable(std::array::from_fn(|_| empty())))
    }

    /// Offset of a message's entry in the table.
    pub(super) fn offset_bytes(message: u64) -> usize {
        (message as usize % REQUESTS_MAX) * size_of::<Entry>()
    }

    fn slot(&self, message: u64) -> &Entry {
        &self.0[message as usize % REQUESTS_MAX]
    }

    /// Stores an entry in the receiver's copy, which the device reads for its write to the sender's table.
    pub(super) fn put(&self, message: u64, cts: &Cts) {
        for (word, value) in self.slot(message).0.iter().zip(cts.words(message)) {
            word.store_relaxed(value);
        }
    }

    /// The entry for a message, once it is complete.
    #[inline]
    pub(super) fn get(&self, message: u64) -> Option<Cts> {
        let [address, place, turn, sum] = &self.slot(message).0;
        // ACQUIRE pairs with the device's write of the entry: the sender may overwrite earlier received data only
        // after it.
        if turn.load_acquire() != message + 1 {
            return None;
        }
        let (address, place) = (address.load_acquire(), place.load_acquire());
        if sum.load_acquire() != check(address, place, message + 1) {
            return None;
        }
        Some(Cts { address, max_bytes: (place >> 32) as u32, key: place as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cts() -> impl Strategy<Value = Cts> {
        any::<(u64, u32, u32)>().prop_map(|(address, max_bytes, key)| Cts { address, max_bytes, key })
    }

    proptest! {
        #[test]
        fn an_entry_is_read_for_its_message_only(cts in cts(), message in 0u64..1 << 40) {
            let table = CtsTable::new();
            table.put(message, &cts);
            prop_assert_eq!(table.get(message), Some(cts));
            prop_assert_eq!(table.get(message + REQUESTS_MAX as u64), None);
            prop_assert_eq!(table.get(message + 1), None);
        }

        /// Rejects each of the 14 mixtures of the previous turn's words with this turn's, unless it equals the new
        /// entry.
        #[test]
        fn a_mixture_of_two_entries_is_none(old in cts(), new in cts(), message in 32u64..1 << 40, fresh in 0usize..15) {
            let table = CtsTable::new();
            let (before, after) = (old.words(message - 32), new.words(message));
            for (i, word) in table.slot(message).0.iter().enumerate() {
                word.store_relaxed(if fresh >> i & 1 == 1 { after[i] } else { before[i] });
            }
            let mixed: [u64; 4] = std::array::from_fn(|i| table.slot(message).0[i].load_relaxed());
            prop_assume!(mixed != after);
            prop_assert_eq!(table.get(message), None);
        }
    }
}
