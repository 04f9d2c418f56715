//! For whom a plugin is asked.

use std::collections::BTreeMap;

/// A communicator.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// A number that names the communicator, the same on all ranks.
    pub communicator: u64,
    /// Ranks.
    pub nranks: u32,
    /// Hosts.
    pub nhosts: u32,
    /// The fewest and the most ranks that a host has.
    pub ranks_each: [u32; 2],
}

impl About {
    /// From the host of each rank.
    pub fn of(communicator: u64, host_of: impl Iterator<Item = u64>) -> About {
        let mut ranks = BTreeMap::new();
        host_of.for_each(|host| *ranks.entry(host).or_insert(0u32) += 1);
        let (least, most) = (ranks.values().min(), ranks.values().max());
        let ranks_each = [least, most].map(|count| count.copied().unwrap_or(0));
        About { communicator, nranks: ranks.values().sum(), nhosts: ranks.len() as u32, ranks_each }
    }
}
