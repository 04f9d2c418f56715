//! Splitting a communicator, independent of its machine: the members of each new one, and their order.

use super::comm_call::InCommCall;
use super::config::Config;
use super::error::Error;
use super::stalls::Stalls;
use crate::bootstrap::{Bootstrap, BootstrapError, Cancel, Watch, by_numbers_here};
use crate::connect::ConnectError;
use crate::launch::CommCall;
use crate::transport::p2p::P2pError;
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What a rank asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Wish {
    /// Its new communicator; `None` joins none.
    color: Option<u32>,
    /// Its position there.
    key: i32,
}

impl Message for Wish {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 16;
}

/// The ranks of `color`, by key and then by rank.
fn members(blocks: &[Vec<u8>], color: Option<u32>) -> Result<Vec<Rank>, ConnectError> {
    let mut members = Vec::new();
    for (rank, block) in (0..).map(Rank).zip(blocks) {
        let wish = Wish::from_bytes(block).map_err(|_| ConnectError::Malformed { peer: rank })?;
        if color.is_some() && wish.color == color {
            members.push((wish.key, rank));
        }
    }
    members.sort_unstable();
    Ok(members.into_iter().map(|(_, rank)| rank).collect())
}

/// Splits the ranks; none for one that gave no color, else with the parent's numbers of the child's ranks. Every rank calls it, each time with the same turn.
///
/// # Errors
/// Those of the bootstrap; `cancel` ends the join of the child.
pub(super) fn split(
    parent: &Watch,
    (turn, stalls): (Turn, Option<Arc<Stalls>>),
    color: Option<u32>,
    key: i32,
    cancel: &Cancel,
) -> Result<Option<(Bootstrap, Vec<Rank>)>, Error> {
    turn.wait();
    let in_call = InCommCall::enter(stalls, CommCall::Split, None);
    let blocks = in_call.gather(parent.bootstrap(), &Wish { color, key }.to_bytes())?;
    let members = members(&blocks, color)?;
    let child = in_call.named(parent.bootstrap().split(&members, turn.number, cancel))?;
    Ok(child.map(|child| (child, members)))
}

/// The error of a child of `members` that was being connected. That of its bootstrap names ranks by their numbers in the parent, of `nranks` ranks; all
/// others come from the child, as do the texts of other ranks in them, and name ranks by their numbers there.
pub(super) fn by_numbers_in_parent(error: Error, members: &[Rank], nranks: u32) -> Error {
    let here = |error: BootstrapError| by_numbers_here(error, members, nranks);
    match error {
        Error::Bootstrap(error) => here(error).into(),
        Error::Connect(ConnectError::Bootstrap(error)) => ConnectError::Bootstrap(here(error)).into(),
        Error::Connect(ConnectError::P2p(error)) => ConnectError::P2p(Box::new(match *error {
            P2pError::Bootstrap(error) => P2pError::Bootstrap(here(error)),
            error => error,
        }))
        .into(),
        error => error,
    }
}

/// The splits of a communicator, which take place one after another in the order in which they were asked for: the same on every rank.
#[derive(Default)]
pub(super) struct Turns {
    taken: Cell<u64>,
    /// How many have taken place.
    over: Arc<(Mutex<u64>, Condvar)>,
}

/// A split's turn. Dropped once it has taken place.
pub(super) struct Turn {
    /// Identifies the split on the wire; from 1.
    number: u64,
    over: Arc<(Mutex<u64>, Condvar)>,
}

impl Turns {
    pub fn next(&self) -> Turn {
        self.taken.set(self.taken.get() + 1);
        Turn { number: self.taken.get(), over: self.over.clone() }
    }
}

impl Turn {
    /// Waits for the splits before, whose own waits are bounded.
    pub fn wait(&self) {
        let (over, changed) = &*self.over;
        let mut over = over.lock().unwrap_or_else(PoisonError::into_inner);
        while *over + 1 < self.number {
            over = changed.wait(over).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // One that was never used has its turn too.
        self.wait();
        let (over, changed) = &*self.over;
        *over.lock().unwrap_or_else(PoisonError::into_inner) = self.number;
        changed.notify_all();
    }
}

/// How often each set of a communicator's ranks has gone on alone. All ranks of a set count alike, whatever the others do.
#[derive(Default)]
pub(super) struct Shrinks(RefCell<HashMap<Vec<Rank>, u64>>);

impl Shrinks {
    /// The number of the next communicator of these ranks; from 1.
    pub fn next(&self, members: &[Rank]) -> u64 {
        let mut counts = self.0.borrow_mut();
        let count = counts.entry(members.to_vec()).or_default();
        *count += 1;
        *count
    }
}

/// A parent's settings for a child, without those about the parent's ranks.
pub(super) fn settings(parent: &Config) -> Config {
    let mut config = parent.clone();
    config.topology = config.topology.for_some_ranks();
    config.name = None;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(wishes: &[(Option<u32>, i32)]) -> Vec<Vec<u8>> {
        wishes.iter().map(|(color, key)| Wish { color: *color, key: *key }.to_bytes()).collect()
    }

    #[test]
    fn colors_part_and_keys_order() {
        let all = blocks(&[(Some(0), 5), (Some(1), i32::MIN), (Some(0), -1), (None, 0), (Some(0), 5)]);
        let of = |color| members(&all, color).unwrap().into_iter().map(|rank| rank.0).collect::<Vec<_>>();
        assert_eq!(of(Some(0)), [2, 0, 4]);
        assert_eq!(of(Some(1)), [1]);
        assert!(of(None).is_empty() && of(Some(2)).is_empty());
    }

    /// Wherever it is, the bootstrap's error is told apart from the others.
    #[test]
    fn only_the_bootstraps_errors_are_by_numbers_in_the_parent() {
        let (members, lost) = ([Rank(4), Rank(6)], |rank| BootstrapError::PeerLost { rank: Rank(rank) });
        let all: [fn(BootstrapError) -> Error; 3] = [
            Error::Bootstrap,
            |error| ConnectError::Bootstrap(error).into(),
            |error| ConnectError::P2p(Box::new(P2pError::Bootstrap(error))).into(),
        ];
        for of in all {
            assert_eq!(by_numbers_in_parent(of(lost(1)), &members, 8), of(lost(6)));
        }
        let of_child = Error::from(ConnectError::Malformed { peer: Rank(1) });
        assert_eq!(by_numbers_in_parent(of_child.clone(), &members, 8), of_child);
    }

    #[test]
    fn splits_take_place_in_the_order_in_which_they_were_asked_for() {
        let (turns, order) = (Turns::default(), Mutex::new(Vec::new()));
        let (first, second, third) = (turns.next(), turns.next(), turns.next());
        std::thread::scope(|scope| {
            for turn in [third, first] {
                let order = &order;
                scope.spawn(move || {
                    turn.wait();
                    order.lock().unwrap().push(turn.number);
                });
            }
            scope.spawn(move || drop(second));
        });
        assert_eq!(order.into_inner().unwrap(), [1, 3]);
    }

    #[test]
    fn a_rank_that_says_something_else_is_named() {
        for wrong in [vec![], vec![0; 8], vec![0; 10], vec![2; 9]] {
            let mut all = blocks(&[(Some(0), 0), (None, 0), (Some(0), 0)]);
            all[1] = wrong;
            assert_eq!(members(&all, Some(0)), Err(ConnectError::Malformed { peer: Rank(1) }));
        }
    }

    #[test]
    fn each_set_counts_by_itself() {
        let shrinks = Shrinks::default();
        let (one, other) = ([Rank(0), Rank(1)], [Rank(0), Rank(2)]);
        assert_eq!((shrinks.next(&one), shrinks.next(&other), shrinks.next(&one)), (1, 1, 2));
    }
}
