//! How a link breaks, and on whose side.

use oxccl_shared::abi::{Rank, Step};
use rustix::io::Errno;
use std::fmt;

/// Why a link is dead. It stays so: every later call returns the same error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer's process or host ended the connection.
    #[error(
        "link {direction} rank {peer}: closed by the peer at step {}{}; that rank died or aborted, see its log",
        step.0, if *mid_frame { ", in the middle of a slot" } else { "" }
    )]
    PeerClosed {
        /// The rank at the other end.
        peer: Rank,
        /// Which way the data goes.
        direction: Direction,
        /// The step that was to travel next.
        step: Step,
        /// Whether part of it already had.
        mid_frame: bool,
    },
    /// The network or this host's kernel.
    #[error("link {direction} rank {peer}: {call} at step {}: {errno}; check the network between the hosts", step.0)]
    Socket {
        /// The rank at the other end.
        peer: Rank,
        /// Which way the data goes.
        direction: Direction,
        /// The step that was to travel next.
        step: Step,
        /// The system call.
        call: &'static str,
        /// What it said.
        errno: Errno,
    },
    /// The link goes over a network of [`crate::net::Net`], which failed.
    #[error("link {direction} rank {peer}: {reason}")]
    Net {
        /// The rank at the other end.
        peer: Rank,
        /// Which way the data goes.
        direction: Direction,
        /// What the network said; kept for the rest of the process, since a communicator fails but once.
        reason: &'static str,
    },
    /// The network that reduces between the hosts failed.
    #[error("{reason}")]
    Coll {
        /// Its device, which head this rank is, and what the network said; kept as above.
        reason: &'static str,
    },
    /// The peer sent what it should not have.
    #[error("link {} rank {peer}: bad frame at step {}: {fault}", Direction::From, step.0)]
    BadFrame {
        /// The rank at the other end.
        peer: Rank,
        /// The step that was to arrive.
        step: Step,
        /// What was wrong.
        fault: FrameFault,
    },
}

/// Which way the data of a link goes, seen from this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// This rank sends.
    To,
    /// This rank receives.
    From,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::To => "to",
            Direction::From => "from",
        })
    }
}

/// What is wrong with a frame header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameFault {
    /// The stream is out of step, or another program is at the other end.
    #[error("starts with {found:#06x} where OxCCL's frames have {expected:#06x}")]
    Magic {
        /// The first two bytes of every frame.
        expected: u16,
        /// Those that came.
        found: u16,
    },
    /// Another version of OxCCL.
    #[error("frame version {found}, this rank speaks {expected}; install the same OxCCL on all hosts")]
    Version {
        /// This library's.
        expected: u8,
        /// The peer's.
        found: u8,
    },
    /// No protocol has this number.
    #[error("unknown protocol {found}")]
    Protocol {
        /// The number.
        found: u8,
    },
    /// A frame was lost or repeated. TCP does neither, so one end's counter is wrong.
    #[error("carries step {found:#x}, expected {expected:#x} (low 32 bits)")]
    Step {
        /// This rank's next step.
        expected: u32,
        /// The frame's.
        found: u32,
    },
    /// More payload than a slot holds.
    #[error("{found} payload bytes, a slot holds {max}; NCCL_BUFFSIZE must be equal on all hosts")]
    Length {
        /// The most that this rank's slots hold under the frame's protocol.
        max: u32,
        /// The frame's.
        found: u32,
    },
}

/// What stops a state machine; the link adds who and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Closed { mid_frame: bool },
    Socket(Errno),
    Frame(FrameFault),
}

impl Fault {
    /// A failed system call: the peer's doing if it reset the connection.
    pub(super) fn from_errno(errno: Errno, mid_frame: bool) -> Fault {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Fault::Closed { mid_frame },
            errno => Fault::Socket(errno),
        }
    }
}
