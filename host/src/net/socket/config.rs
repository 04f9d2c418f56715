//! Settings of the network over sockets.

use crate::bootstrap::InterfaceFilter;
use std::time::Duration;

/// The network's name.
pub(super) const NAME: &str = "Socket";

/// Most data sockets of one connection (`NCCL_SOCKET_NTHREADS` x `NCCL_NSOCKS_PERTHREAD`), as in NCCL.
pub const DATA_SOCKETS_MAX: u32 = 64;

/// Settings of the network over sockets. `Default` is that of an empty environment.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// Interfaces to use as devices (`NCCL_SOCKET_IFNAME`). Default: the real ones, or bridges if there are none, or
    /// the loopback.
    pub interfaces: Option<InterfaceFilter>,
    /// Restricts addresses to IPv4 (`Some(false)`) or IPv6 (`Some(true)`, `NCCL_SOCKET_FAMILY`). Default: either, IPv4 first.
    pub ipv6: Option<bool>,
    /// Data sockets of a connection, besides the control socket. None (the default): the control socket carries
    /// everything, in one system call per message.
    pub data_sockets: u32,
    /// Whether all that connections carry is encrypted and authenticated (`OXCCL_ENCRYPT`), by both ends. Default: no.
    pub encrypt: bool,
    /// Timeout for setting up a connection. Default 60 s.
    pub connect_timeout: Duration,
    /// Time limit of a peer's handshake with a listener. Default 5 s.
    pub handshake_timeout: Duration,
    /// When a silent host counts as gone, while no message is in flight (TCP keep-alive). Default 20 s: later than
    /// the bootstrap's detection, which names ranks instead of addresses.
    pub peer_dead_after: Duration,
}

impl Default for SocketConfig {
    fn default() -> Self {
        SocketConfig {
            interfaces: None,
            ipv6: None,
            data_sockets: 0,
            encrypt: false,
            connect_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(5),
            peer_dead_after: crate::bootstrap::PEER_DEAD_AFTER,
        }
    }
}
