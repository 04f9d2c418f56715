//! Splitting a communicator, independent of its machine: the members of each new one, and their order.

use super::config::Config;
use super::error::Error;
use super::membership::Membership;
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

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
    for (rank, block) in blocks.iter().enumerate() {
        let wish = Wish::from_bytes(block).map_err(|_| ConnectError::Malformed { peer: rank as u32 })?;
        if color.is_some() && wish.color == color {
            members.push((wish.key, Rank(rank as u32)));
        }
    }
    members.sort_unstable();
    Ok(members.into_iter().map(|(_, rank)| rank).collect())
}

/// Splits the ranks; none for one that gave no color. Every rank calls it.
pub(super) fn split(parent: &Membership, color: Option<u32>, key: i32) -> Result<Option<Bootstrap>, Error> {
    let blocks = parent.watch().all_gather(&Wish { color, key }.to_bytes())?;
    let members = members(&blocks, color)?;
    Ok(parent.watch().bootstrap().split(&members, parent.next_split())?)
}

/// A parent's settings for a child, without those about the parent's ranks.
pub(super) fn settings(parent: &Config) -> Config {
    let mut config = parent.clone();
    config.topology = config.topology.for_some_ranks();
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

    #[test]
    fn a_rank_that_says_something_else_is_named() {
        for wrong in [vec![], vec![0; 8], vec![0; 10], vec![2; 9]] {
            let mut all = blocks(&[(Some(0), 0), (None, 0), (Some(0), 0)]);
            all[1] = wrong;
            assert_eq!(members(&all, Some(0)), Err(ConnectError::Malformed { peer: 1 }));
        }
    }
}
