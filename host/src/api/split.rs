//! Splitting a communicator, whatever it runs on: who comes together, and in which order.

use super::config::Config;
use super::error::Error;
use super::membership::Membership;
use crate::bootstrap::Bootstrap;
use crate::channel::ConnectError;
use oxccl_shared::abi::Rank;

/// What a rank asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wish {
    /// Whom to be with; nobody without.
    color: Option<u32>,
    /// Where among them.
    key: i32,
}

impl Wish {
    fn to_bytes(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[0] = u8::from(self.color.is_some());
        bytes[1..5].copy_from_slice(&self.color.unwrap_or(0).to_le_bytes());
        bytes[5..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Wish> {
        let [has_color, c0, c1, c2, c3, k0, k1, k2, k3] = *<&[u8; 9]>::try_from(bytes).ok()?;
        let color = u32::from_le_bytes([c0, c1, c2, c3]);
        let color = match has_color {
            0 => None,
            1 => Some(color),
            _ => return None,
        };
        Some(Wish { color, key: i32::from_le_bytes([k0, k1, k2, k3]) })
    }
}

/// The ranks of `color`, by key and then by rank.
fn members(blocks: &[Vec<u8>], color: Option<u32>) -> Result<Vec<Rank>, ConnectError> {
    let mut members = Vec::new();
    for (rank, block) in blocks.iter().enumerate() {
        let wish = Wish::from_bytes(block).ok_or(ConnectError::Malformed { peer: rank as u32 })?;
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

/// A parent's settings for a child, without what the user said of the parent's ranks.
pub(super) fn settings(parent: &Config) -> Config {
    let mut config = parent.clone();
    config.topology = config.topology.for_some_ranks();
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(wishes: &[(Option<u32>, i32)]) -> Vec<Vec<u8>> {
        wishes.iter().map(|(color, key)| Wish { color: *color, key: *key }.to_bytes().to_vec()).collect()
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
