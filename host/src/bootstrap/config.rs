//! Layer: host / bootstrap.
//! Takes: what the caller read from its configuration.
//! Gives: [`BootstrapConfig`]: every bound on time and the choice of interface.
//! Never: reads the environment.

use std::net::IpAddr;
use std::time::Duration;

use super::iface::InterfaceFilter;

/// Bounds and choices of the bootstrap. `Default` suits a cluster; tests shorten the times.
#[derive(Clone, Debug)]
pub struct BootstrapConfig {
    /// How long ranks wait for each other: the root counts from the first rank that registers, every other operation
    /// from its own begin. Default 120 s.
    pub timeout: Duration,
    /// How long a new connection may take to prove that it belongs to the job. Default 5 s.
    pub handshake_timeout: Duration,
    /// After how long a silent host counts as dead (TCP keep-alive and user timeout). Default 5 s; the kernel's
    /// granularity makes anything below 2 s count as 2 s.
    pub peer_dead_after: Duration,
    /// How long a root waits for its first rank before it ends: the life of an id that nobody uses. Default 10 min.
    pub unused_root_timeout: Duration,
    /// The local address for listeners. Wins over `interfaces`.
    pub bind_addr: Option<IpAddr>,
    /// Which interfaces may be used (the text of `NCCL_SOCKET_IFNAME`, parsed). `None`: the first that is up and not
    /// a loopback or container bridge; a rank that joins uses the interface through which it reaches the root.
    pub interfaces: Option<InterfaceFilter>,
    /// Restricts the choice of interface to IPv4 (`Some(false)`) or IPv6 (`Some(true)`). Default: either, IPv4 first.
    pub prefer_ipv6: Option<bool>,
}

impl Default for BootstrapConfig {
    fn default() -> Self {
        BootstrapConfig {
            timeout: Duration::from_secs(120),
            handshake_timeout: Duration::from_secs(5),
            peer_dead_after: Duration::from_secs(5),
            unused_root_timeout: Duration::from_secs(600),
            bind_addr: None,
            interfaces: None,
            prefer_ipv6: None,
        }
    }
}
