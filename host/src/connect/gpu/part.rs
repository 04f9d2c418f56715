//! Parts of a communicator's connections, each made when an operation first needs it: some channels of one kind, for one protocol or for
//! all, between all ranks or between a pair. Pure, so that all ranks cut alike.
//!
//! A proxy's connections serve all protocols. A kernel has one cursor for each connection, so where some lead over a network, those in
//! memory serve all protocols too.

use crate::machine::{ConnKind, Need};
use oxccl_shared::abi::{ConnLayout, Protocol, Rank};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A part. Its ranks all name it so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Part {
    /// What its connections are for.
    pub kind: ConnKind,
    /// The protocol of their slots; all have slots, if none is named.
    pub protocol: Option<Protocol>,
    /// Which channels: index of a cut.
    pub cut: u8,
    /// Between whom, the lower first; all ranks, if none are named.
    pub pair: Option<[Rank; 2]>,
}

/// Where channels are cut. The first channel is enough for what is small; then as many as the measured tables jump between.
const CUTS: [usize; 7] = [0, 1, 4, 16, 24, 32, 64];

/// What every rank has from init on, where all share memory: a barrier and the smallest collectives need no more.
pub const FIRST: Part = Part { kind: ConnKind::Mesh, protocol: Some(Protocol::LL), cut: 0, pair: None };

/// What every rank has from init on, where some meet over a network: it shows that the network works, and that sharing memory does.
pub const FIRST_OF_HOSTS: Part = Part { kind: ConnKind::Ring, protocol: None, cut: 0, pair: None };

impl Part {
    /// The channels, of a kind that has so many.
    pub fn channels(&self, of: usize) -> Range<usize> {
        let at = |cut: usize| CUTS.get(cut).copied().unwrap_or(usize::MAX).min(of);
        at(self.cut.into())..at(usize::from(self.cut) + 1)
    }

    /// The parts that rank `rank` needs for a launch, of a kind that has so many channels, and whose parts are for one protocol or for all.
    pub fn of_need(need: &Need, rank: Rank, of: usize, for_all: bool) -> impl Iterator<Item = Part> + use<> {
        let Need { kind, protocol, channels, peer } = *need;
        let protocol = (!for_all).then_some(protocol);
        let pair = peer.map(|peer| [rank.min(peer), rank.max(peer)]);
        let part = move |cut| Part { kind, protocol, cut, pair };
        (0..CUTS.len() as u8)
            .map(part)
            .take_while(move |part| part.channels(of).start < (channels as usize).min(of))
    }

    /// Its ranks, of so many.
    pub fn members(&self, nranks: u32) -> Vec<Rank> {
        self.pair.map_or_else(|| (0..nranks).map(Rank).collect(), Vec::from)
    }

    /// Whether a rank is one of them.
    pub fn has(&self, rank: Rank) -> bool {
        self.pair.is_none_or(|pair| pair.contains(&rank))
    }

    /// Whether it is one of a communicator of so many ranks.
    pub fn is_sound(&self, nranks: u32) -> bool {
        let is_pair = self.pair.is_some_and(|[a, b]| a < b && b.0 < nranks);
        usize::from(self.cut) < CUTS.len()
            && is_pair == (self.kind == ConnKind::Pair)
            && (is_pair || self.pair.is_none())
    }

    /// The slots of its connections: those of its protocol, or all.
    pub fn slots(&self, all: ConnLayout) -> ConnLayout {
        let if_by = |protocol, bytes| if self.protocol.is_none_or(|own| own == protocol) { bytes } else { 0 };
        ConnLayout {
            ll_slot_bytes: if_by(Protocol::LL, all.ll_slot_bytes),
            ll128_slot_bytes: if_by(Protocol::LL128, all.ll128_slot_bytes),
            simple_slot_bytes: if_by(Protocol::Simple, all.simple_slot_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is needed is covered, by parts that do not overlap and that are the same whoever needs them.
        #[test]
        fn parts_cover_what_is_needed(channels in 1u32..200, of in 1usize..130, a in 0u32..9, b in 0u32..9, for_all: bool) {
            prop_assume!(a != b);
            for (kind, peer) in [(ConnKind::Ring, None), (ConnKind::Pair, Some(Rank(b)))] {
                let need = Need { kind, protocol: Protocol::Simple, channels, peer };
                let parts: Vec<Part> = Part::of_need(&need, Rank(a), of, for_all).collect();
                let mut end = 0;
                for part in &parts {
                    let range = part.channels(of);
                    prop_assert!(range.start == end && !range.is_empty());
                    prop_assert!(part.is_sound(9) && part.has(Rank(a)) && peer.is_none_or(|peer| part.has(peer)));
                    end = range.end;
                }
                prop_assert!(end >= (channels as usize).min(of));
                let theirs = Need { peer: peer.map(|_| Rank(a)), ..need };
                prop_assert_eq!(Part::of_need(&theirs, Rank(b), of, for_all).collect::<Vec<_>>(), parts);
            }
        }
    }

    #[test]
    fn what_no_communicator_has_is_no_part() {
        assert!(FIRST.is_sound(2));
        let pair = |pair| Part { kind: ConnKind::Pair, pair, ..FIRST };
        assert!(pair(Some([Rank(0), Rank(1)])).is_sound(2));
        for wrong in [
            pair(None),
            pair(Some([Rank(1), Rank(0)])),
            pair(Some([Rank(1), Rank(1)])),
            pair(Some([Rank(0), Rank(2)])),
            Part { cut: CUTS.len() as u8, ..FIRST },
            Part { pair: Some([Rank(0), Rank(1)]), ..FIRST },
        ] {
            assert!(!wrong.is_sound(2), "{wrong:?}");
        }
    }

    #[test]
    fn a_part_has_the_slots_of_its_protocol() {
        let all = ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 384, simple_slot_bytes: 512 };
        let bytes = |protocol| Part { protocol: Some(protocol), ..FIRST }.slots(all).total_bytes();
        let control = size_of::<oxccl_shared::abi::ConnControl>();
        let each = [Protocol::LL, Protocol::LL128, Protocol::Simple].map(bytes);
        assert_eq!(each, [8 * 256, 4 * 384, 8 * 512].map(|slots| control + slots));
        assert_eq!(FIRST_OF_HOSTS.slots(all), all);
    }
}
