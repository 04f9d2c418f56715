//! Words between the ranks of a host, by what they say.

use crate::plan::Said;
use oxccl_shared::abi::Rank;

/// Words between two ranks, in each direction: an admit, a done, what the reader waits for, and room for `choices`.
pub(crate) const SLOTS: u32 = 128;
/// In the words of a rank to itself: what its stream waits for, as [`Awaited`], or 0.
pub(super) const AWAITED: u32 = 2;
pub(super) const CHOICES: u32 = 3;

/// The slot of a word that says so.
pub(super) const fn slot(said: Said) -> u32 {
    match said {
        Said::Admit => 0,
        Said::Done => 1,
    }
}

/// Admits and dones have 32 bits, and those of two ranks share a word, so that a stream waits for both and sets both back in one operation,
/// each of which takes nearly a microsecond. The word is that of the even rank.
pub(super) fn pair_of(from: Rank) -> Rank {
    Rank(from.0 & !1)
}

/// Which bits of it are this rank's.
pub(super) fn shift(from: Rank) -> u32 {
    from.0 % 2 * 32
}

/// One piece of each of a pair.
pub(super) const BOTH: u64 = 1 << 32 | 1;

/// What a stream waits for, for the watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Awaited {
    /// The call's number.
    pub call: u32,
    /// Who is to say it; every other rank if none.
    pub from: Option<Rank>,
    pub said: Said,
    /// Pieces, below 128.
    pub pieces: u32,
}

impl Awaited {
    /// Never 0.
    pub fn to_word(self) -> u64 {
        let from = self.from.map_or(0, |rank| u64::from(rank.0) + 1);
        u64::from(self.call) << 32 | from << 8 | u64::from(self.pieces) << 1 | u64::from(slot(self.said))
    }

    /// None of 0.
    pub fn from_word(word: u64) -> Option<Awaited> {
        let from = (word >> 8 & 0xff_ffff) as u32;
        (word != 0).then(|| Awaited {
            call: (word >> 32) as u32,
            from: from.checked_sub(1).map(Rank),
            said: if word & 1 == 0 { Said::Admit } else { Said::Done },
            pieces: (word >> 1 & 0x7f) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_awaited_survives_a_word() {
        assert_eq!(Awaited::from_word(0), None);
        for said in [Said::Admit, Said::Done] {
            for (call, from, pieces) in
                [(0, None, 1), (u32::MAX, Some(Rank(0)), 64), (7, Some(Rank(65_535)), 127)]
            {
                let awaited = Awaited { call, from, said, pieces };
                assert_ne!(awaited.to_word(), 0);
                assert_eq!(Awaited::from_word(awaited.to_word()), Some(awaited));
            }
        }
    }

    #[test]
    fn a_pair_waits_for_both() {
        assert_eq!(
            [0, 1, 2, 3].map(|rank| (pair_of(Rank(rank)).0, shift(Rank(rank)))),
            [(0, 0), (0, 32), (2, 0), (2, 32)]
        );
        // As the driver compares: the word minus the value is not negative.
        let is_over = |word: u64| word.wrapping_sub(BOTH) as i64 >= 0;
        assert_eq!([0, 1, 1 << 32, BOTH].map(is_over), [false, false, false, true]);
    }
}
