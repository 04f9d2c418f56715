//! What the ranks of a communicator have answered to somebody who asked this process.

use crate::launch::Standing;
use oxccl_shared::abi::Rank;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The answers to the latest inquiry.
pub(super) struct Roll {
    me: Rank,
    latest: Mutex<Latest>,
}

struct Latest {
    number: Option<u64>,
    said: Vec<Option<Standing>>,
}

impl Roll {
    pub fn new(me: Rank, nranks: u32) -> Roll {
        Roll { me, latest: Mutex::new(Latest { number: None, said: vec![None; nranks as usize] }) }
    }

    /// The ranks are asked.
    pub fn begin(&self, number: u64) {
        let mut latest = self.lock();
        latest.number = Some(number);
        latest.said.fill(None);
    }

    /// A rank has answered.
    pub fn heard(&self, from: Rank, number: u64, standing: Standing) {
        let mut latest = self.lock();
        if latest.number == Some(number)
            && let Some(said) = latest.said.get_mut(from.index())
        {
            *said = Some(standing);
        }
    }

    /// Whether everybody has answered, but those who have left.
    pub fn is_complete(&self, number: u64, has_left: impl Fn(Rank) -> bool) -> bool {
        let latest = self.lock();
        let mut others = (0..).map(Rank).zip(&latest.said).filter(|(rank, _)| *rank != self.me);
        latest.number != Some(number) || others.all(|(rank, said)| said.is_some() || has_left(rank))
    }

    /// What each rank has answered; `None` if nobody has been asked.
    pub fn answers(&self) -> Option<Vec<Option<Standing>>> {
        let latest = self.lock();
        latest.number.map(|_| latest.said.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_another_inquiry_do_not_count() {
        let roll = Roll::new(Rank(0), 3);
        assert_eq!(roll.answers(), None);
        roll.begin(7);
        roll.heard(Rank(1), 6, Standing::default());
        roll.heard(Rank(9), 7, Standing::default());
        assert!(!roll.is_complete(7, |_| false));
        roll.heard(Rank(1), 7, Standing::default());
        assert!(!roll.is_complete(7, |_| false) && roll.is_complete(7, |rank| rank == Rank(2)));
        assert_eq!(roll.answers(), Some(vec![None, Some(Standing::default()), None]));
        roll.begin(8);
        assert!(roll.is_complete(7, |_| false), "nobody waits for it any more");
        assert_eq!(roll.answers(), Some(vec![None; 3]));
    }
}
