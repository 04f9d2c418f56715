//! Layer: host / bootstrap, below everything else in it.
//! Takes: ranks.
//! Gives: [`RankList`], a bounded list of ranks in words.
//! Never: allocates, however many ranks there are.

use std::fmt;

use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

/// Ranks that a [`RankList`] names; the others are only counted.
pub const RANKS_NAMED_MAX: usize = 8;

/// Some ranks, in the order given: the first eight by number, the rest by count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(into = "RankListForm", from = "RankListForm")]
pub struct RankList {
    named: [Rank; RANKS_NAMED_MAX],
    total: u32,
}

impl RankList {
    /// Appends a rank: by number while there is room, otherwise only counted.
    pub fn push(&mut self, rank: Rank) {
        if let Some(place) = self.named.get_mut(self.total as usize) {
            *place = rank;
        }
        self.total = self.total.saturating_add(1);
    }

    /// The named ranks.
    pub fn named(&self) -> &[Rank] {
        &self.named[..(self.total as usize).min(RANKS_NAMED_MAX)]
    }

    pub(super) fn named_mut(&mut self) -> &mut [Rank] {
        &mut self.named[..(self.total as usize).min(RANKS_NAMED_MAX)]
    }

    /// Number of ranks, named or not.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Whether it has no ranks.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// A list from the wire: `named` may be shorter than `total`.
    pub(crate) fn from_parts(named: &[Rank], total: u32) -> RankList {
        let mut list: RankList = named.iter().copied().collect();
        list.total = total.max(list.total);
        if list.total as usize > named.len() && named.len() < RANKS_NAMED_MAX {
            list.total = named.len() as u32;
        }
        list
    }
}

impl FromIterator<Rank> for RankList {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> RankList {
        let mut list = RankList::default();
        ranks.into_iter().for_each(|rank| list.push(rank));
        list
    }
}

impl fmt::Display for RankList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named();
        let others = self.total as usize - named.len();
        f.write_str(if self.total == 1 { "rank " } else { "ranks " })?;
        for (i, rank) in named.iter().enumerate() {
            let last = i + 1 == named.len() && others == 0;
            f.write_str(match i {
                0 => "",
                _ if last => " and ",
                _ => ", ",
            })?;
            write!(f, "{rank}")?;
        }
        if others > 0 {
            write!(f, " and {others} more")?;
        }
        Ok(())
    }
}

/// How a [`RankList`] travels: how many ranks, and those known by number.
#[derive(Serialize, Deserialize)]
struct RankListForm {
    total: u32,
    named: heapless::Vec<Rank, RANKS_NAMED_MAX>,
}

impl From<RankList> for RankListForm {
    fn from(list: RankList) -> RankListForm {
        RankListForm { total: list.total, named: list.named().iter().copied().collect() }
    }
}

impl From<RankListForm> for RankList {
    fn from(form: RankListForm) -> RankList {
        RankList::from_parts(&form.named, form.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_as_a_person_would() {
        let say = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<RankList>().to_string();
        assert_eq!(say(&[3]), "rank 3");
        assert_eq!(say(&[3, 4]), "ranks 3 and 4");
        assert_eq!(say(&[0, 1, 2, 3, 4, 5, 6, 7]), "ranks 0, 1, 2, 3, 4, 5, 6 and 7");
        assert_eq!(say(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
    }
}
