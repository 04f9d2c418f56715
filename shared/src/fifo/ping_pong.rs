//! Ping-pong buffers: a few buffers of a pair of processors, that change hands with each message.
//!
//! The rank that has a buffer sends its next message in it instead of in the slot. The slot's line says so ([`Place`]). The receiver has the
//! buffer from then on, and sends its own next message in it. So two ranks that exchange messages store to lines that they have just read,
//! which are in their own caches (docs/measurements/2026-11-28-cpu-ping-pong.md).
//!
//! Steps and credits are as without: a message in a buffer uses up its step's slot, which stays empty. A rank that has no buffer, because it
//! has sent more than it has received, uses slots. So nobody ever waits for a buffer.
//!
//! A message that goes to several peers lies in a buffer of the sender's *outbox* instead, if one is free, stored once. The line of each peer's
//! slot says so. The sender stores to that buffer again when it sees that all of them have released that step.
//!
//! # Why no further order is needed
//! A pair's buffer has one owner at a time. Its owner sends it away by a release store, behind its stores to it, and behind its loads of what was in
//! it before: the message that brought it was read first. The other end owns it once it has seen that store by an acquire load.
//! An outbox stays its sender's. Its readers' loads come before the release store to `head` of each, which the sender acquires before it stores again.

use crate::sync::{Block, Word};

/// Buffers that each rank of a pair starts with. A message as long as two of them exchanges two.
pub const BUFFERS: usize = 2;

/// Buffers of a rank's outbox: what goes to several peers is stored once, in one of them, and all read it there. With two, a rank that goes on
/// to the next message finds one that all have read.
pub const OUTBOX_BUFFERS: usize = 2;

/// Where a message of Simple lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// In the slot of its step.
    #[default]
    Slot,
    /// In this buffer of the connection that carries it.
    Own(u8),
    /// In this buffer of the pair's other connection.
    Opposite(u8),
    /// In this buffer of the sender's outbox. Its other peers read it too, and nobody but the sender stores to it.
    Outbox(u8),
}

impl Place {
    /// From here on are the bits of a slot's `tail` that say it. No connection carries so many messages that their number would need them.
    const SHIFT: u32 = 61;

    /// As a number below 8; 0 is the slot.
    const fn code(self) -> u32 {
        match self {
            Place::Slot => 0,
            Place::Own(index) => 1 + index as u32,
            Place::Opposite(index) => (1 + BUFFERS) as u32 + index as u32,
            Place::Outbox(index) => (1 + 2 * BUFFERS) as u32 + index as u32,
        }
    }

    const fn of_code(code: u32) -> Place {
        const OWN_MAX: u32 = BUFFERS as u32;
        const OPPOSITE_MAX: u32 = 2 * OWN_MAX;
        const MAX: u32 = OPPOSITE_MAX + OUTBOX_BUFFERS as u32;
        match code {
            1..=OWN_MAX => Place::Own(code as u8 - 1),
            _ if OWN_MAX < code && code <= OPPOSITE_MAX => Place::Opposite((code - OWN_MAX) as u8 - 1),
            _ if OPPOSITE_MAX < code && code <= MAX => Place::Outbox((code - OPPOSITE_MAX) as u8 - 1),
            _ => Place::Slot,
        }
    }

    /// The same place, named by the pair's other connection.
    pub const fn seen_from_the_other(self) -> Place {
        match self {
            Place::Slot | Place::Outbox(_) => self,
            Place::Own(index) => Place::Opposite(index),
            Place::Opposite(index) => Place::Own(index),
        }
    }

    /// In a slot's `tail`, beside the number of steps.
    pub(super) const fn bits(self) -> u64 {
        (self.code() as u64) << Place::SHIFT
    }

    /// What a slot's `tail` says, and the number of steps.
    pub(super) const fn split(tail: u64) -> (Place, u64) {
        (Place::of_code((tail >> Place::SHIFT) as u32), tail & !(u64::MAX << Place::SHIFT))
    }
}

/// Which of the pair's buffers one of the two ranks has. Its thread alone uses it.
pub struct PingPong {
    /// Places, named by the connection on which this rank sends, four bits each; the lowest is what came last.
    has: Word<u32, Block>,
}

const CODE_BITS: u32 = 4;
const _: () = assert!(2 * BUFFERS + OUTBOX_BUFFERS < 8 && 2 * BUFFERS as u32 * CODE_BITS <= u32::BITS);

impl PingPong {
    /// At first each rank has the buffers of the connection on which it sends.
    #[allow(clippy::new_without_default, reason = "one end of two")]
    pub fn new() -> PingPong {
        let has = (0..BUFFERS).rev().fold(0, |has, index| has << CODE_BITS | Place::Own(index as u8).code());
        PingPong { has: Word::new(has) }
    }

    /// Where this rank's next message goes: what it has read last is in its caches.
    #[inline]
    pub fn next(&self) -> Place {
        Place::of_code(self.has.load_relaxed() & ((1 << CODE_BITS) - 1))
    }

    /// A message of this rank is about to be published there, where [`Self::next`] said; others may have come since.
    #[inline]
    pub fn give(&self, place: Place) {
        if place == Place::Slot {
            return;
        }
        let has = self.has.load_relaxed();
        let is_there = |at: &u32| has >> at & ((1 << CODE_BITS) - 1) == place.code();
        if let Some(at) = (0..u32::BITS).step_by(CODE_BITS as usize).find(is_there) {
            let newer = has & ((1 << at) - 1);
            self.has.store_relaxed((has >> CODE_BITS) & !((1 << at) - 1) | newer);
        }
    }

    /// A message to this rank that lay there, named by the connection on which it came, has been read.
    #[inline]
    pub fn take(&self, place: Place) {
        if matches!(place, Place::Own(_) | Place::Opposite(_)) {
            let has = self.has.load_relaxed();
            self.has.store_relaxed(has << CODE_BITS | place.seen_from_the_other().code());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_place_and_a_number_of_steps_are_told_apart() {
        for place in (0..=(2 * BUFFERS + OUTBOX_BUFFERS) as u32).map(Place::of_code) {
            assert_eq!(Place::of_code(place.code()), place);
            assert_eq!(place.seen_from_the_other().seen_from_the_other(), place);
            for steps in [0, 1, u64::MAX >> 3] {
                assert_eq!(Place::split(steps | place.bits()), (place, steps));
            }
        }
    }

    /// What a rank has, named by the connection on which it sends.
    fn has(rank: &PingPong) -> Vec<Place> {
        let has = rank.has.load_relaxed();
        let codes = (0..u32::BITS / CODE_BITS).map(|at| has >> (at * CODE_BITS) & 0xf);
        codes.take_while(|code| *code != 0).map(Place::of_code).collect()
    }

    /// Any order of messages: every buffer is with one rank, or on its way to one.
    #[test]
    fn no_buffer_is_lost_or_had_twice() {
        let ranks = [PingPong::new(), PingPong::new()];
        let mut ways: [Vec<Place>; 2] = Default::default();
        let mut random = 1u64;
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (rank, sends) = ((random >> 40) as usize % 2, random >> 50 & 1 == 0);
            if sends {
                let place = ranks[rank].next();
                ranks[rank].give(place);
                ways[rank].push(place);
            } else if !ways[1 - rank].is_empty() {
                ranks[rank].take(ways[1 - rank].remove(0));
            }
            let named_by_first = |rank: usize, places: Vec<Place>| -> Vec<Place> {
                places.into_iter().map(|p| if rank == 0 { p } else { p.seen_from_the_other() }).collect()
            };
            let mut all = named_by_first(0, [has(&ranks[0]), ways[0].clone()].concat());
            all.extend(named_by_first(1, [has(&ranks[1]), ways[1].clone()].concat()));
            let mut codes: Vec<u32> =
                all.iter().map(|place| place.code()).filter(|code| *code != 0).collect();
            codes.sort_unstable();
            assert_eq!(codes, (1..=2 * BUFFERS as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_buffer_is_given_that_is_no_longer_the_latest() {
        let rank = PingPong::new();
        let first = rank.next();
        rank.take(Place::Own(1));
        rank.give(first);
        assert_eq!(has(&rank), [Place::Opposite(1), Place::Own(1)]);
        rank.give(first);
        assert_eq!(has(&rank), [Place::Opposite(1), Place::Own(1)], "it is gone");
    }

    #[test]
    fn an_outbox_stays_its_owners() {
        let rank = PingPong::new();
        let before = has(&rank);
        rank.give(Place::Outbox(0));
        rank.take(Place::Outbox(1));
        assert_eq!(has(&rank), before);
    }

    #[test]
    fn what_names_no_place_is_the_slot() {
        for code in (2 * BUFFERS + OUTBOX_BUFFERS) as u32 + 1..8 {
            assert_eq!(Place::of_code(code), Place::Slot);
        }
    }

    #[test]
    fn ranks_that_exchange_messages_swap_buffers() {
        let ranks = [PingPong::new(), PingPong::new()];
        for round in 0..4 {
            let places = ranks.each_ref().map(PingPong::next);
            assert_eq!(places, [if round % 2 == 0 { Place::Own(0) } else { Place::Opposite(0) }; 2]);
            ranks.iter().zip(places).for_each(|(rank, place)| rank.give(place));
            ranks.iter().zip(places).for_each(|(rank, place)| rank.take(place));
        }
        for _ in 0..2 * BUFFERS {
            ranks[0].give(ranks[0].next());
        }
        assert_eq!(ranks[0].next(), Place::Slot, "it has none until one comes");
    }
}
