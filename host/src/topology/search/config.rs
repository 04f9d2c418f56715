//! Options of searches.

use crate::topology::Tables;

/// The user's options. The default is that of an empty environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchConfig {
    /// The NCCL release whose constants apply.
    pub tables: Tables,
    /// Whether a ring may enter a host by another NIC than it leaves by (`NCCL_CROSS_NIC`): 0 never, 1 always, 2 if better.
    pub cross_nic: u32,
    /// Whether to search for channels with in-network reduction (`NCCL_COLLNET_ENABLE`).
    pub collnet: bool,
    /// Whether to search for channels that reduce in NVSwitches (`NCCL_NVLS_ENABLE`).
    pub nvls: bool,
}

impl Default for SearchConfig {
    fn default() -> Self {
        SearchConfig { tables: Tables::Current, cross_nic: 2, collnet: false, nvls: true }
    }
}
