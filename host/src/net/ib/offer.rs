//! What a receiver writes into the sender's memory when it is ready for a message: where the message goes.
//!
//! ```text
//! receiver: irecv n  --RDMA write-->  table[n % 32] of the sender: {address, length and key, n + 1, check}
//! sender:   isend n waits for it, then --RDMA write--> address, and the notice with the length
//! ```
//! So nothing is ever sent that nobody waits for, and no message is copied. The bus may show parts of a 32-byte write before
//! others: an entry counts only once its check word fits all others.

use crate::net::REQUESTS_MAX;
use oxccl_shared::sync::{Sys, Word};

/// A number that no mixture of an old and a new entry yields by accident.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A place for one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    /// In the receiver's address space.
    pub address: u64,
    pub max_bytes: u32,
    /// The receiver's key for that memory.
    pub key: u32,
}

/// An entry as it lies in memory.
#[repr(C, align(32))]
pub(super) struct Slot([Word<u64, Sys>; 4]);

/// All entries: message `n` uses entry `n % 32`, which is free again when message `n` is done.
#[repr(C, align(64))]
pub(super) struct Table(pub [Slot; REQUESTS_MAX]);

const _: () = {
    assert!(size_of::<Slot>() == 32 && align_of::<Slot>() == 32);
    assert!(size_of::<Table>() == 32 * REQUESTS_MAX);
};

impl Offer {
    fn words(&self, message: u64) -> [u64; 4] {
        let place = u64::from(self.max_bytes) << 32 | u64::from(self.key);
        let turn = message + 1;
        [self.address, place, turn, check(self.address, place, turn)]
    }
}

fn check(address: u64, place: u64, turn: u64) -> u64 {
    (address ^ place.rotate_left(17) ^ SEED).wrapping_mul(turn | 1) ^ turn.rotate_left(32)
}

impl Table {
    /// Without offers.
    pub(super) fn new() -> Box<Table> {
        let empty = || Slot([0; 4].map(Word::new));
        Box::new(Table(std::array::from_fn(|_| empty())))
    }

    /// Where the entry of a message lies from the table's start.
    pub(super) fn offset_bytes(message: u64) -> usize {
        (message as usize % REQUESTS_MAX) * size_of::<Slot>()
    }

    fn slot(&self, message: u64) -> &Slot {
        &self.0[message as usize % REQUESTS_MAX]
    }

    /// The receiver's copy, which the device reads when it writes the sender's.
    pub(super) fn put(&self, message: u64, offer: &Offer) {
        for (word, value) in self.slot(message).0.iter().zip(offer.words(message)) {
            word.store_relaxed(value);
        }
    }

    /// The offer for a message, once all of it is there.
    #[inline]
    pub(super) fn get(&self, message: u64) -> Option<Offer> {
        let [address, place, turn, sum] = &self.slot(message).0;
        // ACQUIRE pairs with the device's write of the entry: what was received before may be overwritten only after it.
        if turn.load_acquire() != message + 1 {
            return None;
        }
        let (address, place) = (address.load_acquire(), place.load_acquire());
        if sum.load_acquire() != check(address, place, message + 1) {
            return None;
        }
        Some(Offer { address, max_bytes: (place >> 32) as u32, key: place as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer() -> impl Strategy<Value = Offer> {
        any::<(u64, u32, u32)>().prop_map(|(address, max_bytes, key)| Offer { address, max_bytes, key })
    }

    proptest! {
        #[test]
        fn an_offer_is_read_for_its_message_only(offer in offer(), message in 0u64..1 << 40) {
            let table = Table::new();
            table.put(message, &offer);
            prop_assert_eq!(table.get(message), Some(offer));
            prop_assert_eq!(table.get(message + REQUESTS_MAX as u64), None);
            prop_assert_eq!(table.get(message + 1), None);
        }

        /// Any of the 14 mixtures of the last turn's words with this turn's is refused, unless it is the new entry.
        #[test]
        fn half_an_offer_is_none(old in offer(), new in offer(), message in 32u64..1 << 40, fresh in 0usize..15) {
            let table = Table::new();
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
