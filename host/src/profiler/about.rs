//! For whom a plugin is asked.

use oxccl_shared::abi::Rank;

/// A communicator.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// A number that names the communicator, the same on all ranks.
    pub communicator: u64,
    /// What its user calls it.
    pub name: Option<&'a str>,
    /// This rank.
    pub rank: Rank,
    /// Ranks.
    pub nranks: u32,
    /// Hosts.
    pub nhosts: u32,
}
