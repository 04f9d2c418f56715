//! Settings of the network over sockets.

use crate::bootstrap::InterfaceFilter;
use std::time::Duration;

/// Data sockets of one connection at most (`NCCL_SOCKET_NTHREADS` x `NCCL_NSOCKS_PERTHREAD`), as in NCCL.
pub const DATA_SOCKETS_MAX: u32 = 64;

/// Settings of the network over sockets. `Default` is what an empty environment gives.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// Which interfaces are devices (`NCCL_SOCKET_IFNAME`). Default: the real ones, or bridges if there are none, or the
    /// loopback.
    pub interfaces: Option<InterfaceFilter>,
    /// Restricts addresses to IPv4 (`Some(false)`) or IPv6 (`Some(true)`, `NCCL_SOCKET_FAMILY`). Default: either, IPv4 first.
    pub ipv6: Option<bool>,
    /// Data sockets of a connection, besides the control socket. None (the default): the control socket carries everything, in
    /// one system call per message.
    pub data_sockets: u32,
    /// How long a connection may take to come about. Default 60 s.
    pub connect_timeout: Duration,
    /// How long whoever connects to a listener may take to prove that it was told of it. Default 5 s.
    pub handshake_timeout: Duration,
    /// After how long a silent host counts as gone, while nothing is under way (TCP keep-alive). Default 20 s: later than the
    /// bootstrap finds it out, which knows ranks and not only addresses.
    pub peer_dead_after: Duration,
}

impl Default for SocketConfig {
    fn default() -> Self {
        SocketConfig {
            interfaces: None,
            ipv6: None,
            data_sockets: 0,
            connect_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(5),
            peer_dead_after: Duration::from_secs(20),
        }
    }
}
