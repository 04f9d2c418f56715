//! How a network fails, whichever it is.

use std::io;

/// Why a call of a network failed. Who the peer is as a rank, the caller adds: a network knows addresses only.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NetError {
    /// There is no such network on this host.
    #[error("network {net}: {reason}")]
    Absent {
        /// Which.
        net: String,
        /// What is missing, and where it was looked for.
        reason: String,
    },
    /// There is no such device.
    #[error("network {net} has no device {device}: it has {devices}")]
    NoDevice {
        /// Which network.
        net: String,
        /// The device that was asked for.
        device: u32,
        /// How many there are.
        devices: u32,
    },
    /// A handle that this network did not make.
    #[error("network {net}: the other rank's handle is {reason}; NCCL_NET must be equal on all ranks")]
    BadHandle {
        /// Which network.
        net: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The device does not do that.
    #[error("{device}: {what} is not supported")]
    Unsupported {
        /// Which device.
        device: String,
        /// What was asked for.
        what: String,
    },
    /// The other end is gone.
    #[error("{device}: {peer} closed the connection{}", if *mid_message { " in the middle of a message" } else { "" })]
    Closed {
        /// This end's device.
        device: String,
        /// The other end's address.
        peer: String,
        /// Whether a message was under way.
        mid_message: bool,
    },
    /// The other end broke the rules of the wire.
    #[error("{device}: {peer} sent {found} where {expected} was due")]
    Protocol {
        /// This end's device.
        device: String,
        /// The other end's address.
        peer: String,
        /// What is right.
        expected: String,
        /// What came.
        found: String,
    },
    /// The operating system, a driver or a plugin refused.
    #[error("{device}: {call}{}: {reason}", peer.as_ref().map(|peer| format!(" with {peer}")).unwrap_or_default())]
    Call {
        /// This end's device, with its port where it has several.
        device: String,
        /// The other end's address, where one is involved.
        peer: Option<String>,
        /// The function.
        call: &'static str,
        /// What it said, in words.
        reason: String,
    },
}

impl NetError {
    /// A call that failed without a peer's part in it.
    pub fn of_call(device: &str, call: &'static str, reason: String) -> NetError {
        NetError::Call { device: device.to_owned(), peer: None, call, reason }
    }

    /// The other end's address, if it has a part in the failure: then the connection is broken.
    pub fn peer(&self) -> Option<&str> {
        match self {
            NetError::Closed { peer, .. } | NetError::Protocol { peer, .. } => Some(peer),
            NetError::Call { peer, .. } => peer.as_deref(),
            _ => None,
        }
    }

    /// An error of the operating system.
    pub fn of_io(device: &str, peer: Option<String>, call: &'static str, error: &io::Error) -> NetError {
        NetError::Call { device: device.to_owned(), peer, call, reason: crate::os::said(error) }
    }
}
