//! Pairs of an algorithm and a protocol, and sets of them.

use core::fmt;
use oxccl_shared::abi::{Algorithm, Func, Protocol};
use oxccl_shared::algo::registry::{SPECS, index_of};
use oxccl_shared::algo::spec::{Connections, Processor};

/// One way to carry out a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize)]
pub struct Candidate {
    /// Who sends which part to whom.
    pub algorithm: Algorithm,
    /// In which line format.
    pub protocol: Protocol,
}

/// A set of candidates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Candidates(u32);

/// How many there are: every algorithm in every protocol by which some function has it, on CPUs or on GPUs.
const COUNT: usize = {
    let (mut count, mut bits) = (0, EVERY);
    while bits != 0 {
        count += (bits & 1) as usize;
        bits >>= 1;
    }
    count
};

/// The same as a set.
const EVERY: u32 = {
    let (mut bits, mut at) = (0, 0);
    while at < SPECS.len() {
        let mut rows = [SPECS[at].on_cpus, SPECS[at].on_gpus];
        let mut list = 0;
        while list < rows.len() {
            while let [first, rest @ ..] = rows[list] {
                bits |= (first.protocols.bits() as u32) << (3 * at);
                rows[list] = rest;
            }
            list += 1;
        }
        at += 1;
    }
    bits
};

const _: () = assert!(SPECS.len() * 3 <= u32::BITS as usize && Protocol::ALL.len() == 3);

impl Candidate {
    /// Every candidate, in the registry's order.
    pub const ALL: [Candidate; COUNT] = {
        let mut all = [Candidate { algorithm: SPECS[0].algorithm, protocol: Protocol::ALL[0] }; COUNT];
        let (mut at, mut bit) = (0, 0);
        while at < COUNT {
            if EVERY >> bit & 1 == 1 {
                all[at] = Candidate { algorithm: SPECS[bit / 3].algorithm, protocol: Protocol::ALL[bit % 3] };
                at += 1;
            }
            bit += 1;
        }
        all
    };

    /// The pair.
    pub const fn new(algorithm: Algorithm, protocol: Protocol) -> Candidate {
        Candidate { algorithm, protocol }
    }

    const fn bit(self) -> u32 {
        1 << (3 * index_of(self.algorithm) + self.protocol as usize)
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
    pub const ALL: Candidates = Candidates(EVERY);

    /// The candidates for which `has` returns true.
    pub fn of(has: impl Fn(Candidate) -> bool) -> Candidates {
        Candidates::ALL.that(has)
    }

    /// Of these, those for which `has` returns true.
    #[must_use]
    pub fn that(self, has: impl Fn(Candidate) -> bool) -> Candidates {
        self.iter().filter(|candidate| has(*candidate)).fold(Candidates::NONE, Candidates::with)
    }

    /// An algorithm with all its protocols.
    pub const fn along(algorithm: Algorithm) -> Candidates {
        Candidates(EVERY & 0o7 << (3 * index_of(algorithm)))
    }

    /// All algorithms with a protocol.
    pub const fn by(protocol: Protocol) -> Candidates {
        Candidates(EVERY & 0o1_111_111_111 << protocol as usize)
    }

    /// What the registry has of a function.
    pub const fn offered(func: Func, on: Processor) -> Candidates {
        let (mut bits, mut at) = (0, 0);
        while at < SPECS.len() {
            bits |= (SPECS[at].protocols(func, on).bits() as u32) << (3 * at);
            at += 1;
        }
        Candidates(bits)
    }

    /// All algorithms that need such connections, with all their protocols.
    pub const fn over(connections: Connections) -> Candidates {
        let (mut bits, mut at) = (0, 0);
        while at < SPECS.len() {
            if SPECS[at].connections as u8 == connections as u8 {
                bits |= EVERY & 0o7 << (3 * at);
            }
            at += 1;
        }
        Candidates(bits)
    }

    /// These and one more.
    #[must_use]
    pub fn with(self, candidate: Candidate) -> Candidates {
        Candidates(self.0 | candidate.bit())
    }

    /// The only candidate, if there is exactly one.
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

    /// Those of both.
    pub const fn or_also(self, other: Candidates) -> Candidates {
        Candidates(self.0 | other.0)
    }

    /// Those that are in both.
    pub const fn and(self, other: Candidates) -> Candidates {
        Candidates(self.0 & other.0)
    }

    /// The difference.
    pub fn without(self, other: Candidates) -> Candidates {
        Candidates(self.0 & !other.0)
    }

    /// `self`, or `other` if `self` is empty.
    pub fn or(self, other: Candidates) -> Candidates {
        if self.is_empty() { other } else { self }
    }

    /// In the order of [`Candidate::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Candidate> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let at = bits.trailing_zeros() as usize;
            let spec = SPECS.get(at / 3)?;
            bits &= bits - 1;
            Some(Candidate { algorithm: spec.algorithm, protocol: Protocol::ALL[at % 3] })
        })
    }

    /// With the protocol that is nearest to the one wanted: itself, the next that takes no less of a slot's bytes, or else the last there
    /// is. Of this algorithm, or of one that the model computes by the same terms: one-shot and two-shot stand in for each other.
    pub fn nearest(self, wanted: Candidate) -> Option<Candidate> {
        let kin = self.and(KIN[index_of(wanted.algorithm)]);
        let has = |protocol| !kin.and(Candidates::by(protocol)).is_empty();
        let protocol = wanted.protocol.nearest(has)?;
        let same = Candidate { protocol, ..wanted };
        if self.has(same) { Some(same) } else { kin.and(Candidates::by(protocol)).iter().next() }
    }
}

/// For each row of the registry what the model computes by the same terms: every call is planned, and asks.
const KIN: [Candidates; SPECS.len()] = {
    let mut kin = [Candidates::NONE; SPECS.len()];
    let (mut of, mut other) = (0, 0);
    while of < SPECS.len() {
        if SPECS[of].terms.are_like(SPECS[other].terms) {
            kin[of] = kin[of].or_also(Candidates::along(SPECS[other].algorithm));
        }
        other += 1;
        if other == SPECS.len() {
            (of, other) = (of + 1, 0);
        }
    }
    kin
};

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
            Candidates::of(move |c| c.algorithm == Algorithm::OneShot && protocols.contains(&c.protocol))
        };
        let nearest = |set: Candidates, protocol| {
            set.nearest(Candidate::new(Algorithm::OneShot, protocol)).map(|found| found.protocol)
        };
        let (outer, ll) = (has(&[Protocol::LL, Protocol::Simple]), has(&[Protocol::LL]));
        assert_eq!(nearest(outer, Protocol::LL), Some(Protocol::LL));
        assert_eq!(nearest(outer, Protocol::LL128), Some(Protocol::Simple));
        assert_eq!(nearest(ll, Protocol::Simple), Some(Protocol::LL));
        assert_eq!(outer.nearest(Candidate::new(Algorithm::Ring, Protocol::LL)), None);
        let lines = outer.with(Candidate::new(Algorithm::TwoShot, Protocol::LL128));
        let twoshot = Candidate::new(Algorithm::TwoShot, Protocol::LL128);
        assert_eq!(lines.nearest(Candidate::new(Algorithm::OneShot, Protocol::LL128)), Some(twoshot));
    }
}
