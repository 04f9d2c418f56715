//! Layer: host / bootstrap.
//! Takes: for which ranks each rank has been waiting for long, by its own report.
//! Gives: [`LongWaits`]: who is at fault for a wait that does not end: ranks that others wait for and that report no wait themselves. Sans-IO.
//! Never: reads a clock, or takes an old report for a new one.

use std::collections::{BTreeMap, BTreeSet};

use oxccl_shared::abi::Rank;

use super::rank_list::RankList;
use super::ring_wire::LongWait;

/// The latest report of each rank that has made one.
#[derive(Debug, Default)]
pub(crate) struct LongWaits(BTreeMap<Rank, LongWait>);

impl LongWaits {
    /// Records a report, unless it is older than the one that is known. Whether it is new.
    pub fn note(&mut self, report: LongWait) -> bool {
        let is_new = self.0.get(&report.rank).is_none_or(|known| known.serial < report.serial);
        if is_new {
            self.0.insert(report.rank, report);
        }
        is_new
    }

    /// The number of this rank's next report.
    pub fn next_serial(&self, rank: Rank) -> u64 {
        self.0.get(&rank).map_or(1, |known| known.serial + 1)
    }

    /// Whether a rank waits for others, and so is not at fault itself.
    pub fn waits(&self, rank: Rank) -> bool {
        self.of(rank).is_some()
    }

    /// Whether a rank says that it has given its block for so many all-gathers.
    pub fn has_given(&self, rank: Rank, gathers: u64) -> bool {
        self.0.get(&rank).is_some_and(|known| known.given >= gathers)
    }

    /// For whom a rank says that it waits.
    pub fn of(&self, rank: Rank) -> Option<RankList> {
        self.0.get(&rank)?.awaited
    }

    /// The ranks at fault for the wait of `me` for `awaited`: from those it follows the reports to ranks that report no wait. `awaited`,
    /// if there is no such rank: they wait in a circle.
    pub fn guilty(&self, me: Rank, awaited: RankList) -> RankList {
        let (mut guilty, mut seen) = (BTreeSet::new(), BTreeSet::from([me]));
        let mut next: Vec<Rank> = awaited.named().to_vec();
        while let Some(rank) = next.pop() {
            if !seen.insert(rank) {
                continue;
            }
            match self.of(rank) {
                Some(theirs) => next.extend(theirs.named()),
                None => drop(guilty.insert(rank)),
            }
        }
        if guilty.is_empty() { awaited } else { guilty.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ranks: &[u32]) -> RankList {
        ranks.iter().copied().map(Rank).collect()
    }

    fn waits(reports: &[(u32, &[u32])]) -> LongWaits {
        let mut waits = LongWaits::default();
        for (rank, awaited) in reports {
            waits.note(LongWait { rank: Rank(*rank), serial: 1, awaited: Some(list(awaited)), given: 0 });
        }
        waits
    }

    #[test]
    fn the_reports_lead_to_those_that_make_none() {
        let waits = waits(&[(0, &[4]), (4, &[5]), (6, &[5, 5]), (2, &[0, 3, 6])]);
        for (me, awaited, guilty) in [(0, &[4][..], &[5][..]), (2, &[0, 3, 6], &[3, 5]), (6, &[5, 5], &[5])] {
            assert_eq!(waits.guilty(Rank(me), list(awaited)), list(guilty), "{me}");
        }
        let circle = self::waits(&[(0, &[1]), (1, &[0])]);
        assert_eq!(circle.guilty(Rank(0), list(&[1])), list(&[1]));
    }

    #[test]
    fn an_old_report_changes_nothing() {
        let mut waits = waits(&[(0, &[1])]);
        let over = LongWait { rank: Rank(0), serial: waits.next_serial(Rank(0)), awaited: None, given: 0 };
        assert!(waits.waits(Rank(0)) && waits.note(over) && !waits.note(over));
        assert!(!waits.note(LongWait { serial: 1, awaited: Some(list(&[1])), ..over }));
        assert!(!waits.waits(Rank(0)));
    }
}
