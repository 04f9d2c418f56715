//! The network over InfiniBand on real verbs. `cargo xtask test --only softroce` runs these in a guest that has two RoCE devices;
//! elsewhere they are ignored.

mod aggregator;
mod allocations;
mod collectives;
mod killed;
mod promises;

use oxccl::bootstrap::InterfaceFilter;
use oxccl::net::Net;
use oxccl::net::ib::{self, IbConfig};
use oxccl::net::socket::SocketConfig;
use std::sync::Arc;

/// The network over the ports of the guest, with these settings by NCCL's names.
fn infiniband(settings: &[(&str, &str)]) -> Arc<dyn Net> {
    let mut config = IbConfig::default();
    for (variable, value) in settings {
        config.set(variable, value).expect("a setting");
    }
    let socket = SocketConfig { interfaces: InterfaceFilter::parse("=lo"), ..SocketConfig::default() };
    ib::open(&config, &socket).expect("the guest has RoCE devices")
}
