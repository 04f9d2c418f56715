//! Which algorithms from outside the library the ranks have, and which tuner plugin: all must have the same.

use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::launch::CustomAlgorithm;
use crate::tuner::Plugin;
use crate::wire::{self, Message, digest};
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

/// What a rank has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Registered {
    /// In order: the first that offers a call carries it out.
    algorithms: Vec<Known>,
    /// What its tuner plugin calls itself, cut, and the version of its table.
    tuner: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Known {
    name: String,
    version: u32,
    /// Of the names of its GPU kernels.
    kernels: Option<u64>,
}

/// What ranks with different plugins are told.
const TUNER: &str = "NCCL_TUNER_PLUGIN and what is found by it: the plugin and its version";
/// The most algorithms that a communicator may have.
const ALGORITHMS_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 64;
const TUNER_BYTES_MAX: usize = 128;

impl Message for Registered {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 32 + ALGORITHMS_MAX * (NAME_BYTES_MAX + 32) + TUNER_BYTES_MAX;

    fn is_sound(&self) -> bool {
        self.algorithms.len() <= ALGORITHMS_MAX
            && self.algorithms.iter().all(|known| known.name.len() <= NAME_BYTES_MAX)
            && self.tuner.as_ref().is_none_or(|name| name.len() <= TUNER_BYTES_MAX)
    }
}

impl Known {
    fn of(algorithm: &CustomAlgorithm) -> Known {
        let spec = algorithm.spec();
        let kernels = algorithm.kernels().map(|bundle| {
            let mut entries: Vec<&str> = bundle.entries().map(|(entry, _)| entry).collect();
            entries.sort_unstable();
            entries.dedup();
            digest(&entries)
        });
        Known { name: spec.name.to_owned(), version: spec.version, kernels }
    }
}

/// Compares what all ranks have registered. Every rank calls it, whether it has any or not.
///
/// # Errors
/// The first rank that has not what another has; the same on all ranks.
pub(super) fn agree(
    bootstrap: &Bootstrap,
    mine: &[CustomAlgorithm],
    tuner: Option<&Plugin>,
) -> Result<(), ConnectError> {
    let tuner = tuner.map(|plugin| wire::cut(&plugin.to_string(), TUNER_BYTES_MAX).to_owned());
    let mine = Registered { algorithms: mine.iter().map(Known::of).collect(), tuner };
    let blocks = bootstrap.all_gather(&mine.to_bytes())?;
    let registered = blocks
        .iter()
        .zip((0..).map(Rank))
        .map(|(block, peer)| Registered::from_bytes(block).map_err(|_| ConnectError::Malformed { peer }));
    compare(&registered.collect::<Result<Vec<Registered>, ConnectError>>()?)
}

fn compare(ranks: &[Registered]) -> Result<(), ConnectError> {
    for (rank, registered) in (0..).map(Rank).zip(ranks) {
        for known in &registered.algorithms {
            let lacks = (0..).map(Rank).zip(ranks).find(|(_, other)| !other.algorithms.contains(known));
            if let Some((peer, _)) = lacks {
                let (name, version) = (known.name.clone(), known.version);
                return Err(ConnectError::Algorithm { peer, rank, name, version });
            }
        }
    }
    if let Some((peer, _)) = (0..).map(Rank).zip(ranks).find(|(_, other)| other.tuner != ranks[0].tuner) {
        return Err(ConnectError::Settings { peer, settings: TUNER.to_owned() });
    }
    // The same ones, in another order.
    match (0..).map(Rank).zip(ranks).find(|(_, other)| **other != ranks[0]) {
        Some((peer, _)) => {
            Err(ConnectError::Settings { peer, settings: "the order of registered algorithms".to_owned() })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(algorithms: &[(&str, u32, Option<u64>)]) -> Registered {
        let known = |&(name, version, kernels): &(&str, u32, Option<u64>)| Known {
            name: name.into(),
            version,
            kernels,
        };
        Registered { algorithms: algorithms.iter().map(known).collect(), tuner: None }
    }

    #[test]
    fn the_rank_that_lacks_an_algorithm_is_named() {
        let (none, one, two) = (rank(&[]), rank(&[("a", 1, None)]), rank(&[("a", 2, None)]));
        assert_eq!(compare(&[one.clone(), one.clone()]), Ok(()));
        let error = |peer, rank, version| {
            Err(ConnectError::Algorithm { peer: Rank(peer), rank: Rank(rank), name: "a".into(), version })
        };
        assert_eq!(compare(&[one.clone(), one.clone(), none.clone()]), error(2, 0, 1));
        assert_eq!(compare(&[none, one.clone()]), error(0, 1, 1));
        assert_eq!(compare(&[one.clone(), two]), error(1, 0, 1));
        assert_eq!(compare(&[one, rank(&[("a", 1, Some(5))])]), error(1, 0, 1));
    }

    #[test]
    fn another_order_is_another_setting() {
        let both = [rank(&[("a", 1, None), ("b", 1, None)]), rank(&[("b", 1, None), ("a", 1, None)])];
        assert!(matches!(compare(&both), Err(ConnectError::Settings { peer: Rank(1), .. })));
    }

    #[test]
    fn what_is_announced_arrives() {
        let both = rank(&[("a", 1, None), ("b", 7, Some(u64::MAX))]);
        assert_eq!(Registered::from_bytes(&both.to_bytes()), Ok(both));
    }
}
