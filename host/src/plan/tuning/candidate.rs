//! Pairs of an algorithm and a protocol, and sets of them.

use core::fmt;
use oxccl_shared::abi::{Algorithm, Protocol};

/// One way to carry out a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Candidate {
    /// Who sends which part to whom.
    pub algorithm: Algorithm,
    /// In which line format.
    pub protocol: Protocol,
}

/// A set of candidates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Candidates(u16);

/// The place of an algorithm in tables: NCCL's two, then ours.
pub(super) const fn algorithm_index(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::Tree => 0,
        Algorithm::Ring => 1,
        Algorithm::Direct => 2,
        Algorithm::CollnetChain => 3,
    }
}

impl Candidate {
    /// Every candidate: trees, rings and direct by each protocol, then what a network reduces, which has to be elements and nothing
    /// between them.
    pub const ALL: [Candidate; 10] = {
        const BY_ALL: [Algorithm; 3] = [Algorithm::Tree, Algorithm::Ring, Algorithm::Direct];
        let mut all = [Candidate { algorithm: Algorithm::CollnetChain, protocol: Protocol::Simple }; 10];
        let mut at = 0;
        while at < 9 {
            all[at] = Candidate { algorithm: BY_ALL[at / 3], protocol: Protocol::ALL[at % 3] };
            at += 1;
        }
        all
    };

    /// The pair.
    pub const fn new(algorithm: Algorithm, protocol: Protocol) -> Candidate {
        Candidate { algorithm, protocol }
    }

    const fn bit(self) -> u16 {
        1 << (3 * algorithm_index(self.algorithm) + self.protocol as usize)
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.algorithm, self.protocol)
    }
}

impl Candidates {
    /// None.
    pub const NONE: Candidates = Candidates(0);
    /// Every candidate.
    pub const ALL: Candidates = Candidates(0o4777);

    /// Those that `has` holds for.
    pub fn of(has: impl Fn(Candidate) -> bool) -> Candidates {
        Candidate::ALL
            .into_iter()
            .filter(|candidate| has(*candidate))
            .fold(Candidates::NONE, Candidates::with)
    }

    /// An algorithm in all line formats that it has.
    pub const fn along(algorithm: Algorithm) -> Candidates {
        Candidates(Candidates::ALL.0 & 0o7 << (3 * algorithm_index(algorithm)))
    }

    /// All algorithms in a line format, those that have it.
    pub const fn by(protocol: Protocol) -> Candidates {
        Candidates(Candidates::ALL.0 & 0o1111 << protocol as usize)
    }

    /// These and one more.
    #[must_use]
    pub fn with(self, candidate: Candidate) -> Candidates {
        Candidates(self.0 | candidate.bit())
    }

    /// The only one, if there is one only.
    pub fn only(self) -> Option<Candidate> {
        if self.0.count_ones() == 1 { self.iter().next() } else { None }
    }

    /// Whether it is among them.
    pub fn has(self, candidate: Candidate) -> bool {
        self.0 & candidate.bit() != 0
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are in both.
    pub fn and(self, other: Candidates) -> Candidates {
        Candidates(self.0 & other.0)
    }

    /// Those of `self` that are not in `other`.
    pub fn without(self, other: Candidates) -> Candidates {
        Candidates(self.0 & !other.0)
    }

    /// `self`, or `other` if there are none.
    pub fn or(self, other: Candidates) -> Candidates {
        if self.is_empty() { other } else { self }
    }

    /// In the order of [`Candidate::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Candidate> {
        Candidate::ALL.into_iter().filter(move |candidate| self.has(*candidate))
    }

    /// Of this algorithm with the protocol that is nearest to the one wanted: itself, the next that takes no less of a slot's bytes, or
    /// else the last there is.
    pub fn nearest(self, wanted: Candidate) -> Option<Candidate> {
        if self.has(wanted) {
            return Some(wanted);
        }
        let of_algorithm = || self.iter().filter(|candidate| candidate.algorithm == wanted.algorithm);
        let mut no_shorter = of_algorithm().filter(|known| known.protocol as u8 >= wanted.protocol as u8);
        no_shorter.next().or_else(|| of_algorithm().last())
    }
}

/// `ring ll, ring simple`
impl fmt::Display for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, candidate) in self.iter().enumerate() {
            write!(f, "{}{candidate}", if at > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_they_were_given() {
        let rings = Candidates::of(|candidate| candidate.algorithm == Algorithm::Ring);
        assert_eq!(rings, Candidates::along(Algorithm::Ring));
        assert_eq!(rings.to_string(), "ring ll, ring ll128, ring simple");
        let simple = Candidates::of(|candidate| candidate.protocol == Protocol::Simple);
        assert_eq!(simple, Candidates::by(Protocol::Simple));
        assert_eq!((rings.only(), rings.and(simple).only()), (None, rings.and(simple).iter().next()));
        assert_eq!(rings.and(simple).to_string(), "ring simple");
        assert_eq!(rings.without(simple).iter().count(), 2);
        assert!(rings.and(rings.without(rings)).is_empty());
        assert_eq!(Candidates::ALL.iter().collect::<Vec<_>>(), Candidate::ALL);
    }

    #[test]
    fn a_protocol_that_is_not_there_is_replaced_by_a_neighbour() {
        let has = |protocols: &'static [Protocol]| {
            Candidates::of(move |c| c.algorithm == Algorithm::Direct && protocols.contains(&c.protocol))
        };
        let nearest = |set: Candidates, protocol| {
            set.nearest(Candidate::new(Algorithm::Direct, protocol)).map(|found| found.protocol)
        };
        let (outer, ll) = (has(&[Protocol::LL, Protocol::Simple]), has(&[Protocol::LL]));
        assert_eq!(nearest(outer, Protocol::LL), Some(Protocol::LL));
        assert_eq!(nearest(outer, Protocol::LL128), Some(Protocol::Simple));
        assert_eq!(nearest(ll, Protocol::Simple), Some(Protocol::LL));
        assert_eq!(outer.nearest(Candidate::new(Algorithm::Ring, Protocol::LL)), None);
    }
}
