//! Settings of networks.

use super::coll::CollConfig;
use super::ib::IbConfig;
use super::plugin::PluginConfig;
use super::socket::SocketConfig;
use super::{GdrConfig, Net};
use std::sync::Arc;

/// Settings of all networks.
#[derive(Clone, Debug, Default)]
pub struct NetConfig {
    /// The only network to use, by its name in any letter case (`NCCL_NET`). Default: the first in the order plugins,
    /// IB, Socket that has devices.
    pub name: Option<String>,
    /// The program's own network; it takes precedence.
    pub own: Option<Arc<dyn Net>>,
    /// The plugins to load.
    pub plugins: PluginConfig,
    /// Settings of in-network reduction.
    pub coll: CollConfig,
    /// Settings of the network over InfiniBand and RoCE.
    pub ib: IbConfig,
    /// Settings of the network over sockets.
    pub socket: SocketConfig,
    /// Threads of a GPU's proxy (`OXCCL_PROXY_THREADS`), which divide its connections. Default: the useful number for
    /// that network and host.
    pub proxy_threads: Option<u32>,
    /// Settings of GPUDirect RDMA.
    pub gdr: GdrConfig,
}

impl NetConfig {
    /// Whether a network of that name may be used.
    pub(super) fn admits(&self, name: &str) -> bool {
        self.name.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(name))
    }
}
