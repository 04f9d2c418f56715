//! Layer: host / topology / detect.
//! Takes: `/sys` and `/proc` (or trees of the same form), NVML's facts about GPUs, a cloud provider's skeleton.
//! Gives: an [`Inventory`] of the host, in the form in which NCCL would dump it.
//! Never: fails because a file is missing: a VM or a container shows less, and a device of unknown position counts as
//! near.

mod facts;
mod sysfs;
mod place;
mod nvml;
mod found;

pub use facts::{GpuFacts, NetFacts, PeerFacts};
pub use found::{Found, Own};
pub use nvml::{NvmlError, gpus, index as nvml_index};
pub use place::{complete, processors};
pub use sysfs::Sysfs;

use super::{Inventory, PathPolicy, PeerAccess};
use oxccl_shared::abi::Rank;

/// This host: NVML's GPUs, and RDMA devices or else network interfaces that are up.
///
/// # Errors
/// If NVML cannot be loaded, or fails; a host without GPUs has no NVML.
pub fn host(skeleton: Inventory) -> Result<(Inventory, PathPolicy), NvmlError> {
    let sysfs = Sysfs::live();
    let (mut gpus, blocked) = nvml::gpus()?;
    // The pairs without peer access use the driver's indices.
    gpus.iter_mut().for_each(|gpu| gpu.rank = gpu.dev.map(Rank));
    let policy = PathPolicy { peer_access: PeerAccess::Except(blocked), ..PathPolicy::default() };
    Ok((complete(skeleton, &sysfs, &gpus, &sysfs.nets()), policy))
}

/// This host without GPUs: NUMA nodes, and RDMA devices or else network interfaces that are up.
pub fn host_without_gpus(skeleton: Inventory) -> Inventory {
    let sysfs = Sysfs::live();
    processors(skeleton, &sysfs, &sysfs.nets())
}
