//! Layer: host / topology / detect.
//! Takes: `/sys` and `/proc` (or trees that look like them), what NVML says of GPUs, a skeleton of a cloud provider.
//! Gives: an [`Inventory`] of the host, in the shape in which NCCL would dump it.
//! Never: fails for want of a file: a VM or a container shows less, and what is not shown is taken to be as near as can be.

mod facts;
mod sysfs;
mod place;
mod nvml;
mod found;

pub use facts::{GpuFacts, NetFacts, PeerFacts};
pub use found::{Found, Own};
pub use nvml::{NvmlError, gpus};
pub use place::{complete, processors};
pub use sysfs::Sysfs;

use super::{Inventory, PathPolicy, PeerAccess};

/// This host: GPUs as NVML knows them, RDMA devices, or else network interfaces that are up.
///
/// # Errors
/// If NVML cannot be loaded, or fails; a host without GPUs has no NVML.
pub fn host(skeleton: Inventory) -> Result<(Inventory, PathPolicy), NvmlError> {
    let sysfs = Sysfs::live();
    let (mut gpus, blocked) = nvml::gpus()?;
    // Whom the driver refuses to whom is said by its numbers.
    gpus.iter_mut().for_each(|gpu| gpu.rank = gpu.dev);
    let policy = PathPolicy { peer_access: PeerAccess::Except(blocked), ..PathPolicy::default() };
    Ok((complete(skeleton, &sysfs, &gpus, &sysfs.nets()), policy))
}

/// This host as it is without GPUs: NUMA nodes, and RDMA devices or else network interfaces that are up.
pub fn host_without_gpus(skeleton: Inventory) -> Inventory {
    let sysfs = Sysfs::live();
    processors(skeleton, &sysfs, &sysfs.nets())
}
