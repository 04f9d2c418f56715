//! What both sides of a connection's setup go by: settings, and how they greet each other.

use super::config::IbConfig;
use crate::bootstrap::handshake::{Hello, Purpose};
use crate::net::socket::SocketConfig;
use oxccl_shared::abi::Rank;
use std::net::IpAddr;

/// The rank field of handshakes between networks, which know no ranks: the token authenticates.
pub(super) const NO_RANK: Rank = Rank(0);

/// The connecting side's first handshake message.
pub(super) fn hello(connection: u64) -> Hello {
    Hello { purpose: Purpose::Stream(0), from: NO_RANK, to: NO_RANK, tag: connection }
}

/// The user's settings of the network, and of the sockets for connection setup.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub ib: IbConfig,
    pub socket: SocketConfig,
    /// Address of the setup sockets.
    pub addr: IpAddr,
}
