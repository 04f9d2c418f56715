//! Errors of all networks.

use std::io;

/// Why a call of a network failed. The caller adds the peer's rank: a network knows addresses only.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NetError {
    /// There is no such network on this host.
    #[error("network {net}: {reason}")]
    Absent {
        /// Its name.
        net: String,
        /// What is missing, and where it was searched.
        reason: String,
    },
    /// There is no such device.
    #[error("network {net} has no device {device}: it has {devices}")]
    NoDevice {
        /// Its network.
        net: String,
        /// The device's number.
        device: u32,
        /// Number of devices.
        devices: u32,
    },
    /// A handle of another network.
    #[error("network {net}: the other rank's handle is {reason}; NCCL_NET must be equal on all ranks")]
    BadHandle {
        /// The network.
        net: String,
        /// Why it is invalid.
        reason: String,
    },
    /// One end of a connection encrypts, the other does not.
    #[error(
        "network {net}: this rank has OXCCL_ENCRYPT={} and the other has not; set it alike on all ranks",
        u8::from(*here)
    )]
    Encryption {
        /// The network.
        net: String,
        /// Whether this end does.
        here: bool,
    },
    /// A network that cannot encrypt, where encryption is asked for.
    #[error(
        "network {net} cannot encrypt, and OXCCL_ENCRYPT=1 forbids data in the clear: use what can (NCCL_NET=Socket, NCCL_COLLNET_ENABLE=0), or unset OXCCL_ENCRYPT"
    )]
    InTheClear {
        /// The network.
        net: String,
    },
    /// The device lacks a feature.
    #[error("{device}: {what} is not supported")]
    Unsupported {
        /// The device.
        device: String,
        /// The feature.
        what: String,
    },
    /// The other end has closed the connection.
    #[error("{device}: {peer} closed the connection{}", if *mid_message { " in the middle of a message" } else { "" })]
    Closed {
        /// This end's device.
        device: String,
        /// The other end's address.
        peer: String,
        /// Whether a message was in flight.
        mid_message: bool,
    },
    /// Encrypted bytes were changed on the way, or are not the other end's next ones.
    #[error("{device}: bytes from {peer} were changed on the way")]
    Altered {
        /// This end's device.
        device: String,
        /// The other end's address.
        peer: String,
    },
    /// The other end violated the protocol.
    #[error("{device}: {peer} sent {found} where {expected} was due")]
    Protocol {
        /// This end's device.
        device: String,
        /// The other end's address.
        peer: String,
        /// The expected input.
        expected: String,
        /// The actual input.
        found: String,
    },
    /// The two ends are in different operations.
    #[error(
        "{device}: {peer} sends for operation {found:#010x}, this rank is in {expected:#010x}; do all ranks call the same in the same order?"
    )]
    OtherOperation {
        /// This end's device.
        device: String,
        /// The other end's address.
        peer: String,
        /// The tag of this end's receive.
        expected: u32,
        /// The tag of the message.
        found: u32,
    },
    /// A call of the operating system, a driver or a plugin failed.
    #[error("{device}: {call}{}: {reason}", peer.as_ref().map(|peer| format!(" with {peer}")).unwrap_or_default())]
    Call {
        /// This end's device, with its port where it has several.
        device: String,
        /// The other end's address, if there is one.
        peer: Option<String>,
        /// The function.
        call: &'static str,
        /// Its error, as text.
        reason: String,
    },
}

impl NetError {
    /// A failed call that involves no peer.
    pub fn of_call(device: &str, call: &'static str, reason: String) -> NetError {
        NetError::Call { device: device.to_owned(), peer: None, call, reason }
    }

    /// The other end's address, if it is involved: then the connection is broken.
    pub fn peer(&self) -> Option<&str> {
        match self {
            NetError::Closed { peer, .. }
            | NetError::Altered { peer, .. }
            | NetError::Protocol { peer, .. }
            | NetError::OtherOperation { peer, .. } => Some(peer),
            NetError::Call { peer, .. } => peer.as_deref(),
            _ => None,
        }
    }

    /// An error of the operating system.
    pub fn of_io(device: &str, peer: Option<String>, call: &'static str, error: &io::Error) -> NetError {
        NetError::Call { device: device.to_owned(), peer, call, reason: crate::os::describe(error) }
    }
}
