//! The two ends of a connection, for error messages.

use super::header::HeaderFault;
use crate::net::NetError;
use crate::net::io::ALTERED;
use rustix::io::Errno;

/// The names of a connection's ends.
#[derive(Clone, Debug)]
pub struct Ends {
    /// This end's device.
    pub device: String,
    /// The other end's address.
    pub peer: String,
}

/// What stops a state machine; [`Ends`] add the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Closed { mid_message: bool },
    Altered,
    Call(&'static str, Errno),
    Header(HeaderFault),
}

impl Fault {
    /// A failed system call: the peer's fault if it reset the connection.
    pub(super) fn of_errno(call: &'static str, errno: Errno, mid_message: bool) -> Fault {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Fault::Closed { mid_message },
            ALTERED => Fault::Altered,
            errno => Fault::Call(call, errno),
        }
    }
}

impl Ends {
    #[cold]
    pub(super) fn error(&self, fault: Fault) -> NetError {
        let (device, peer) = (self.device.clone(), self.peer.clone());
        match fault {
            Fault::Closed { mid_message } => NetError::Closed { device, peer, mid_message },
            Fault::Altered => NetError::Altered { device, peer },
            Fault::Call(call, errno) => {
                NetError::Call { device, peer: Some(peer), call, reason: errno.to_string() }
            }
            Fault::Header(HeaderFault::Tag { expected, found }) => {
                NetError::OtherOperation { device, peer, expected, found }
            }
            Fault::Header(fault) => {
                let (expected, found) = fault.words();
                NetError::Protocol { device, peer, expected, found }
            }
        }
    }

    /// The caller's own mistake, which leaves the connection unchanged.
    #[cold]
    pub(super) fn misuse(&self, call: &'static str, reason: &str) -> NetError {
        NetError::of_call(&self.device, call, reason.to_owned())
    }
}
