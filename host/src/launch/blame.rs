//! Finds the rank at fault for a wait that does not end.
//!
//! A rank may wait for its neighbour in a ring or tree, which may itself wait for the next, and so on to the rank
//! that makes no progress. So every rank whose wait is slow tells the others for which rank it waits. A rank whose
//! wait times out follows these reports to their end instead of blaming its own neighbour.

use oxccl_shared::abi::Rank;
use oxccl_shared::sync::{Sys, Word};

/// For which rank each rank waits, by its own report.
#[derive(Default)]
pub struct Waits {
    me: Rank,
    /// By rank: the rank it waits for, plus one; 0 while it waits for none or not for long. Writer: the monitor.
    of: Box<[Word<u32, Sys>]>,
}

/// Whether ranks wait for each other in a circle, so that none of them is at fault more than another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Circle {
    /// No: some rank waits for none.
    None,
    /// This rank among them.
    Ours,
    /// Other ranks, for one of which this rank waits.
    Others,
}

impl Waits {
    /// The view of rank `me` of `nranks`: no rank waits.
    pub fn new(me: Rank, nranks: u32) -> Waits {
        Waits { me, of: (0..nranks).map(|_| Word::new(0)).collect() }
    }

    /// Records a rank's report.
    pub fn note(&self, rank: Rank, waits_for: Option<Rank>) {
        if let Some(word) = self.of.get(rank.index()) {
            // RELEASE pairs with ACQUIRE in `of`.
            word.store_release(waits_for.map_or(0, |peer| peer.0.saturating_add(1)));
        }
    }

    /// The ranks that wait for this one.
    pub fn for_me(&self) -> impl Iterator<Item = Rank> {
        (0..self.of.len() as u32).map(Rank).filter(|rank| self.of(*rank) == Some(self.me))
    }

    fn of(&self, rank: Rank) -> Option<Rank> {
        // ACQUIRE pairs with RELEASE in `note`.
        self.of.get(rank.index())?.load_acquire().checked_sub(1).map(Rank)
    }

    /// The first rank from `awaited` on that waits for none. `awaited` itself, if the ranks wait in a circle: its
    /// call does not match ours.
    pub fn guilty(&self, awaited: Rank) -> Rank {
        self.follow(awaited).unwrap_or(awaited)
    }

    /// Whether the ranks from `awaited` on wait in a circle.
    pub fn circle(&self, awaited: Rank) -> Circle {
        self.follow(awaited).err().unwrap_or(Circle::None)
    }

    /// The first rank from `awaited` on that waits for none, or the circle.
    fn follow(&self, awaited: Rank) -> Result<Rank, Circle> {
        let mut rank = awaited;
        for _ in 0..self.of.len() {
            match self.of(rank) {
                None => return Ok(rank),
                Some(next) if next == self.me => return Err(Circle::Ours),
                Some(next) => rank = next,
            }
        }
        Err(Circle::Others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(words: &[(u32, u32)]) -> Waits {
        let waits = Waits::new(Rank(0), 5);
        words.iter().for_each(|&(rank, peer)| waits.note(Rank(rank), Some(Rank(peer))));
        waits
    }

    #[test]
    fn the_end_of_the_chain_is_guilty() {
        assert_eq!(waits(&[]).guilty(Rank(1)), Rank(1));
        assert_eq!(waits(&[(1, 2), (2, 3)]).guilty(Rank(1)), Rank(3));
        let moved_on = waits(&[(1, 2), (2, 3)]);
        moved_on.note(Rank(1), None);
        assert_eq!(moved_on.guilty(Rank(1)), Rank(1));
    }

    #[test]
    fn those_that_wait_for_this_rank_are_known() {
        let waits = waits(&[(1, 0), (2, 1), (4, 0)]);
        assert_eq!(waits.for_me().collect::<Vec<_>>(), [Rank(1), Rank(4)]);
        waits.note(Rank(1), None);
        assert_eq!(waits.for_me().collect::<Vec<_>>(), [Rank(4)]);
    }

    #[test]
    fn in_a_circle_the_neighbour_is_named() {
        assert_eq!(waits(&[(1, 0)]).guilty(Rank(1)), Rank(1));
        assert_eq!(waits(&[(1, 2), (2, 1)]).guilty(Rank(1)), Rank(1));
        assert_eq!(waits(&[(1, 1)]).guilty(Rank(1)), Rank(1));
    }

    #[test]
    fn circles_are_told_apart() {
        assert_eq!(waits(&[(1, 0)]).circle(Rank(1)), Circle::Ours);
        assert_eq!(waits(&[(1, 2), (2, 0)]).circle(Rank(1)), Circle::Ours);
        assert_eq!(waits(&[(1, 2), (2, 1)]).circle(Rank(1)), Circle::Others);
        assert_eq!(waits(&[(1, 2)]).circle(Rank(1)), Circle::None);
    }

    #[test]
    fn ranks_that_do_not_exist_end_the_chain() {
        assert_eq!(waits(&[(1, 4_000_000_000), (7, 1)]).guilty(Rank(1)), Rank(4_000_000_000));
        assert_eq!(waits(&[(1, u32::MAX)]).guilty(Rank(1)), Rank(u32::MAX - 1));
    }
}
