//! Layer: host / topology / detect.
//! Takes: the GPU that one rank uses.
//! Gives: [`Found`]: what that rank sees of its host, to be merged with what the others see, and its form on the wire.
//! Never: another rank's GPU.

use super::facts::GpuFacts;
use super::nvml::{self, NvmlError};
use super::place::complete;
use super::sysfs::Sysfs;
use crate::topology::xml::{read_topology, write_topology};
use crate::topology::{BusId, Inventory};

/// Which GPU a rank uses, and what else it is to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// The rank.
    pub rank: u32,
    /// Its GPU.
    pub gpu: BusId,
    /// Whether network devices are its to tell: its host's first rank's.
    pub tells_nets: bool,
}

/// What one rank sees of its host.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Its GPU, the network devices, and what leads to them.
    pub inventory: Inventory,
    /// GPUs whose memory its own may not access.
    pub refused: Vec<BusId>,
}

/// GPUs of a host that can be refused.
const REFUSED_MAX: usize = 256;

impl Found {
    /// Looks at this host. `skeleton` says what it has where the user knows better.
    ///
    /// # Errors
    /// If NVML does not know the GPU, and `skeleton` does not either.
    pub fn look(skeleton: Inventory, own: Own) -> Result<Found, NvmlError> {
        let told = skeleton.gpus().iter().any(|(pci, gpu)| pci.bus_id == own.gpu && gpu.sm.is_some());
        let (facts, refused) = match nvml::gpu(own.gpu) {
            Ok((facts, refused)) => (Some(facts), refused),
            Err(_) if told => (None, Vec::new()),
            Err(error) => return Err(error),
        };
        Ok(Found::see(skeleton, &Sysfs::live(), own, facts, refused))
    }

    /// The same from facts at hand.
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

    /// For the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let count = self.refused.len().min(REFUSED_MAX);
        let mut bytes = (count as u32).to_le_bytes().to_vec();
        bytes.extend(self.refused[..count].iter().flat_map(|gpu| gpu.0.to_le_bytes()));
        bytes.extend(write_topology(&self.inventory).into_bytes());
        bytes
    }

    /// From the wire; nothing if it is none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Found> {
        let (count, rest) = bytes.split_first_chunk()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (refused, text) = rest.split_at_checked(count.checked_mul(8)?)?;
        let refused = refused.as_chunks().0.iter().map(|gpu| BusId(u64::from_le_bytes(*gpu))).collect();
        let inventory = read_topology(std::str::from_utf8(text).ok()?).ok()?;
        Some(Found { inventory, refused })
    }
}
