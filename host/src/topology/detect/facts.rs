//! Layer: host / topology / detect, below its sources.
//! Takes: nothing.
//! Gives: a source's facts about a device: [`GpuFacts`], [`NetFacts`].
//! Never: a device's position in the PCI tree: that is `place`'s.

use crate::topology::{BusId, C2c, NvLink};
use oxccl_shared::abi::Rank;

/// A GPU as its driver describes it. A skeleton must supply what is `None`.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuFacts {
    /// Its address.
    pub bus_id: BusId,
    /// The driver's index.
    pub dev: Option<u32>,
    /// Rank that uses it, where ranks are known.
    pub rank: Option<Rank>,
    /// Compute capability, major times ten plus minor.
    pub sm: Option<u32>,
    /// Whether NICs may read and write its memory.
    pub gdr: Option<bool>,
    /// Active NVLinks, one entry for each peer.
    pub nvlinks: Vec<NvLink>,
    /// Chip-to-chip links.
    pub c2c: Vec<C2c>,
}

impl GpuFacts {
    /// Nothing but its address.
    pub fn unknown(bus_id: BusId) -> GpuFacts {
        GpuFacts { bus_id, dev: None, rank: None, sm: None, gdr: None, nvlinks: Vec::new(), c2c: Vec::new() }
    }
}

/// A pair of ranks, or of driver indices where ranks are not known, without access to each other's memory.
pub type PeerFacts = (Rank, Rank);

/// A network device as its driver describes it.
#[derive(Clone, PartialEq, Debug)]
pub struct NetFacts {
    /// `mlx5_0`, `eth0`.
    pub name: String,
    /// Address of its PCI device, if it has one.
    pub bus_id: Option<BusId>,
    /// Line rate, if known.
    pub speed_mbits: Option<u32>,
    /// Port of the adapter.
    pub port: u32,
    /// Identifies the adapter, if known.
    pub guid: Option<u64>,
    /// Whether it can read and write the memory of GPUs.
    pub gdr: bool,
}
