//! Settings of in-network reduction.

use super::CollNet;
use crate::net::aggregate::AggregatorConfig;
use std::sync::Arc;

/// Settings of in-network reduction.
#[derive(Clone, Debug)]
pub struct CollConfig {
    /// Whether to use in-network reduction (`NCCL_COLLNET_ENABLE`).
    pub enabled: bool,
    /// Fewest hosts of a communicator that uses it (`NCCL_COLLNET_NODE_THRESHOLD`).
    pub hosts_min: u32,
    /// The program's own network; it takes precedence over plugins.
    pub own: Option<Arc<dyn CollNet>>,
    /// Aggregators (`OXCCL_AGGREGATOR`), which take precedence over plugins.
    pub aggregators: Option<AggregatorConfig>,
}

impl Default for CollConfig {
    fn default() -> CollConfig {
        CollConfig { enabled: false, hosts_min: 2, own: None, aggregators: None }
    }
}
