//! Layer: host / bootstrap.
//! Takes: the caller's configuration.
//! Gives: [`BootstrapConfig`]: every timeout and the choice of interface.
//! Never: reads the environment.

use std::net::IpAddr;
use std::time::Duration;

use super::iface::InterfaceFilter;

/// Switches fail over in 5 to 30 s, and virtual machines pause while they migrate.
pub(crate) const PEER_DEAD_AFTER: Duration = Duration::from_secs(30);

/// Timeouts and choices of the bootstrap. `Default` suits a cluster; tests shorten the times.
#[derive(Clone, Debug)]
pub struct BootstrapConfig {
    /// Timeout for other ranks: the root counts from the first rank that registers, every other operation from its
    /// own start. Ranks tell the root theirs, and the shortest counts. Default 120 s.
    pub timeout: Duration,
    /// Time limit of a new connection's handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// When a silent host counts as dead (TCP keep-alive and user timeout): outages of the network that are shorter are survived. A process
    /// that ends closes its connections, and is not silent. Default 30 s; the kernel's granularity makes anything below 2 s count as 2 s.
    pub peer_dead_after: Duration,
    /// How long a root waits for its first rank before it ends: the life of an unused id. Default 10 min.
    pub unused_root_timeout: Duration,
    /// The local address for listeners. Overrides `interfaces`.
    pub bind_addr: Option<IpAddr>,
    /// The interfaces that may be used (`NCCL_SOCKET_IFNAME`, parsed). `None`: the first that is up and not a
    /// loopback or container bridge; a joining rank uses the interface through which it reaches the root.
    pub interfaces: Option<InterfaceFilter>,
    /// Restricts the choice of interface to IPv4 (`Some(false)`) or IPv6 (`Some(true)`). Default: either, IPv4 first.
    pub prefer_ipv6: Option<bool>,
}

impl Default for BootstrapConfig {
    fn default() -> Self {
        BootstrapConfig {
            timeout: Duration::from_secs(120),
            handshake_timeout: Duration::from_secs(5),
            peer_dead_after: PEER_DEAD_AFTER,
            unused_root_timeout: Duration::from_secs(600),
            bind_addr: None,
            interfaces: None,
            prefer_ipv6: None,
        }
    }
}
