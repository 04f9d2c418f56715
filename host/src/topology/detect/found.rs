//! Layer: host / topology / detect.
//! Takes: the GPU that one rank uses.
//! Gives: [`Found`]: that rank's view of its host, ready to be merged with the views of others, and its encoding.
//! Never: another rank's GPU.

use super::facts::GpuFacts;
use super::nvml::{self, NvmlError};
use super::place::complete;
use super::sysfs::Sysfs;
use crate::topology::xml::{read_topology, write_topology};
use crate::topology::{BusId, Inventory};
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

/// What one rank detects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// The rank.
    pub rank: Rank,
    /// Its GPU.
    pub gpu: BusId,
    /// Whether this rank reports the network devices. The first rank of each host does.
    pub tells_nets: bool,
}

/// One rank's view of its host.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Its GPU, the network devices, and the devices above them.
    pub inventory: Inventory,
    /// GPUs whose memory its own GPU may not access.
    pub refused: Vec<BusId>,
}

/// Most refused GPUs of a host.
const REFUSED_MAX: usize = 256;

impl Found {
    /// Detects this host's devices. `skeleton` has what the user states.
    ///
    /// # Errors
    /// If neither NVML nor `skeleton` knows the GPU.
    pub fn look(skeleton: Inventory, own: Own) -> Result<Found, NvmlError> {
        let told = skeleton.gpus().iter().any(|(pci, gpu)| pci.bus_id == own.gpu && gpu.sm.is_some());
        let (facts, refused) = match nvml::gpu(own.gpu) {
            Ok((facts, refused)) => (Some(facts), refused),
            Err(_) if told => (None, Vec::new()),
            Err(error) => return Err(error),
        };
        Ok(Found::see(skeleton, &Sysfs::live(), own, facts, refused))
    }

    /// The same from given facts.
    pub fn see(
        mut skeleton: Inventory,
        sysfs: &Sysfs,
        own: Own,
        facts: Option<GpuFacts>,
        refused: Vec<BusId>,
    ) -> Found {
        skeleton.forget_ranks();
        let unknown = GpuFacts::unknown(own.gpu);
        let facts = GpuFacts { rank: Some(own.rank), ..facts.unwrap_or(unknown) };
        let nets = if own.tells_nets { sysfs.nets() } else { Vec::new() };
        let mut inventory = complete(skeleton, sysfs, &[facts], &nets);
        inventory.trim_to_ranks();
        Found { inventory, refused }
    }

    /// Encodes it for the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let refused = self.refused.iter().take(REFUSED_MAX).copied().collect();
        FoundBlock { refused, topology: write_topology(&self.inventory) }.to_bytes()
    }

    /// Decodes it; `None` if malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Found> {
        let FoundBlock { refused, topology } = FoundBlock::from_bytes(bytes).ok()?;
        Some(Found { inventory: read_topology(&topology).ok()?, refused: refused.to_vec() })
    }
}

/// A [`Found`] as it travels.
#[derive(Serialize, Deserialize)]
struct FoundBlock {
    refused: heapless::Vec<BusId, REFUSED_MAX>,
    /// In NCCL's format.
    topology: String,
}

impl Message for FoundBlock {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 4 << 20;
}
