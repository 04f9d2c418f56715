//! Layer: host / topology / paths, a leaf.
//! Takes: NCCL's names of path types.
//! Gives: [`PathKind`], ordered from near to far.
//! Never: more than the name and the order.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Path type: the slowest kind of link between two nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PathKind {
    /// The same node.
    Loc,
    /// NVLink, direct or through NVSwitches.
    Nvl,
    /// NVLink through one other GPU.
    Nvb,
    /// Chip-to-chip link to the CPU.
    C2c,
    /// One PCI switch.
    Pix,
    /// Several PCI switches.
    Pxb,
    /// Chip-to-chip link to the CPU, then PCI.
    P2c,
    /// NVLink to a GPU that is nearer to the NIC.
    Pxn,
    /// A CPU's PCI host bridge.
    Phb,
    /// The link between CPUs.
    Sys,
    /// The network.
    Net,
    /// No route.
    Dis,
}

impl PathKind {
    /// From near to far.
    pub const ALL: [PathKind; 12] = {
        use PathKind::*;
        [Loc, Nvl, Nvb, C2c, Pix, Pxb, P2c, Pxn, Phb, Sys, Net, Dis]
    };

    /// NCCL's name.
    pub fn name(self) -> &'static str {
        match self {
            PathKind::Loc => "LOC",
            PathKind::Nvl => "NVL",
            PathKind::Nvb => "NVB",
            PathKind::C2c => "C2C",
            PathKind::Pix => "PIX",
            PathKind::Pxb => "PXB",
            PathKind::P2c => "P2C",
            PathKind::Pxn => "PXN",
            PathKind::Phb => "PHB",
            PathKind::Sys => "SYS",
            PathKind::Net => "NET",
            PathKind::Dis => "DIS",
        }
    }

    /// The next farther type.
    pub fn farther(self) -> Option<PathKind> {
        PathKind::ALL.get(self as usize + 1).copied()
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Text that is no path type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAPathKind;

impl FromStr for PathKind {
    type Err = NotAPathKind;

    fn from_str(text: &str) -> Result<PathKind, NotAPathKind> {
        PathKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or(NotAPathKind)
    }
}
