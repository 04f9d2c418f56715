//! Layer: host / topology.
//! Takes: inventories of one host, each as one of its ranks sees it.
//! Gives: one inventory of all that they see, without the devices that no rank uses.
//! Never: decides between two ranks that disagree about a device's position, or about a GPU's owner.
//!
//! Ranks are merged in rank order. The first value of an attribute stays; later ranks only fill in missing ones.

use super::{BusId, Cpu, Device, Gpu, Inventory, Nic, Pci};
use oxccl_shared::abi::Rank;
use std::collections::HashSet;
use thiserror::Error;

/// Why the inventories of two ranks do not describe one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum MergeError {
    /// A device below two different parents.
    #[error("PCI device {bus_id} hangs elsewhere than the ranks before saw it")]
    Place {
        /// The device.
        bus_id: BusId,
    },
    /// A GPU that two ranks use.
    #[error("GPU {bus_id} is used by rank {first} and by rank {second}")]
    SharedGpu {
        /// The GPU.
        bus_id: BusId,
        /// The first rank.
        first: Rank,
        /// The second rank.
        second: Rank,
    },
}

impl Inventory {
    /// Clears all ranks: the ranks in a file belong to another communicator.
    pub fn forget_ranks(&mut self) {
        let forget = |gpu: &mut Gpu| gpu.rank = None;
        self.cpus.iter_mut().for_each(|cpu| each_gpu(&mut cpu.devices, &forget));
    }

    /// Keeps the first `count` ranks, renumbered from 0 in their order. Other GPUs lose their rank.
    pub fn first_ranks(&mut self, count: u32) {
        let mut ranks: Vec<Rank> = self.gpus().iter().filter_map(|(_, gpu)| gpu.rank).collect();
        ranks.sort_unstable();
        ranks.truncate(count as usize);
        let number = |gpu: &mut Gpu| {
            gpu.rank =
                gpu.rank.and_then(|rank| ranks.binary_search(&rank).ok()).map(|place| Rank(place as u32));
        };
        self.cpus.iter_mut().for_each(|cpu| each_gpu(&mut cpu.devices, &number));
    }

    /// Removes GPUs without a rank, then CPUs and PCI devices that are left empty.
    pub fn trim_to_ranks(&mut self) {
        self.cpus.iter_mut().for_each(|cpu| {
            drop_unused(&mut cpu.devices);
            trim(&mut cpu.devices);
        });
        self.cpus.retain(|cpu| !cpu.devices.is_empty());
    }

    /// Adds what another rank of the same host sees.
    ///
    /// # Errors
    /// [`MergeError`]; do not use the inventory afterwards.
    pub fn merge(&mut self, other: Inventory) -> Result<(), MergeError> {
        for cpu in other.cpus {
            let id = (cpu.host_hash, cpu.numa_id);
            match self.cpus.iter_mut().find(|known| (known.host_hash, known.numa_id) == id) {
                Some(known) => merge_cpu(known, cpu)?,
                None => self.cpus.push(cpu),
            }
        }
        let mut seen = HashSet::new();
        self.cpus.iter().try_for_each(|cpu| unique(&cpu.devices, cpu.host_hash, &mut seen))
    }
}

/// Removes PCI devices with neither a GPU nor a network device in or below them.
pub(super) fn trim(devices: &mut Vec<Device>) {
    devices.retain_mut(|device| match device {
        Device::Pci(pci) => {
            trim(&mut pci.devices);
            pci.devices.iter().any(|device| !matches!(device, Device::PciLink(_)))
        }
        Device::Nic(nic) => !nic.nets.is_empty(),
        Device::Gpu(_) | Device::PciLink(_) => true,
    });
}

fn each_gpu(devices: &mut [Device], visit: &dyn Fn(&mut Gpu)) {
    for device in devices {
        match device {
            Device::Pci(pci) => each_gpu(&mut pci.devices, visit),
            Device::Gpu(gpu) => visit(gpu),
            Device::Nic(_) | Device::PciLink(_) => {}
        }
    }
}

fn drop_unused(devices: &mut Vec<Device>) {
    devices.retain_mut(|device| match device {
        Device::Pci(pci) => {
            drop_unused(&mut pci.devices);
            true
        }
        Device::Gpu(gpu) => gpu.rank.is_some(),
        Device::Nic(_) | Device::PciLink(_) => true,
    });
}

fn merge_cpu(known: &mut Cpu, other: Cpu) -> Result<(), MergeError> {
    known.affinity = known.affinity.take().or(other.affinity);
    known.arch = known.arch.take().or(other.arch);
    known.vendor = known.vendor.take().or(other.vendor);
    known.family_id = known.family_id.or(other.family_id);
    known.model_id = known.model_id.or(other.model_id);
    merge_devices(&mut known.devices, other.devices, BusId(0))
}

/// Merges the devices below the PCI device `above`.
fn merge_devices(known: &mut Vec<Device>, others: Vec<Device>, above: BusId) -> Result<(), MergeError> {
    for other in others {
        match other {
            Device::Pci(pci) => match find_pci(known, pci.bus_id) {
                Some(same) => merge_pci(same, pci)?,
                None => known.push(Device::Pci(pci)),
            },
            Device::Gpu(gpu) => match known.iter_mut().find_map(as_gpu) {
                Some(same) => merge_gpu(same, gpu, above)?,
                None => known.push(Device::Gpu(gpu)),
            },
            Device::Nic(nic) => match known.iter_mut().find_map(as_nic) {
                Some(same) => merge_nic(same, nic),
                None => known.push(Device::Nic(nic)),
            },
            Device::PciLink(target) => {
                if !known.contains(&Device::PciLink(target)) {
                    known.push(Device::PciLink(target));
                }
            }
        }
    }
    Ok(())
}

fn find_pci(devices: &mut [Device], bus_id: BusId) -> Option<&mut Pci> {
    devices.iter_mut().find_map(|device| match device {
        Device::Pci(pci) if pci.bus_id == bus_id => Some(pci),
        _ => None,
    })
}

fn as_gpu(device: &mut Device) -> Option<&mut Gpu> {
    if let Device::Gpu(gpu) = device { Some(gpu) } else { None }
}

fn as_nic(device: &mut Device) -> Option<&mut Nic> {
    if let Device::Nic(nic) = device { Some(nic) } else { None }
}

fn merge_pci(known: &mut Pci, other: Pci) -> Result<(), MergeError> {
    known.class = known.class.or(other.class);
    known.vendor = known.vendor.or(other.vendor);
    known.device = known.device.or(other.device);
    known.subsystem_vendor = known.subsystem_vendor.or(other.subsystem_vendor);
    known.subsystem_device = known.subsystem_device.or(other.subsystem_device);
    known.link_speed = known.link_speed.take().or(other.link_speed);
    known.link_width = known.link_width.or(other.link_width);
    merge_devices(&mut known.devices, other.devices, known.bus_id)
}

fn merge_gpu(known: &mut Gpu, other: Gpu, bus_id: BusId) -> Result<(), MergeError> {
    if let (Some(first), Some(second)) = (known.rank, other.rank)
        && first != second
    {
        return Err(MergeError::SharedGpu { bus_id, first, second });
    }
    known.rank = known.rank.or(other.rank);
    known.dev = known.dev.or(other.dev);
    known.sm = known.sm.or(other.sm);
    known.gdr = known.gdr.or(other.gdr);
    if known.nvlinks.is_empty() {
        known.nvlinks = other.nvlinks;
    }
    if known.c2c.is_empty() {
        known.c2c = other.c2c;
    }
    Ok(())
}

fn merge_nic(known: &mut Nic, other: Nic) {
    for net in other.nets {
        if !known.nets.iter().any(|same| (&same.name, same.port, same.dev) == (&net.name, net.port, net.dev))
        {
            known.nets.push(net);
        }
    }
}

/// Checks that every PCI device of a host appears once.
fn unique(
    devices: &[Device],
    host: Option<u64>,
    seen: &mut HashSet<(Option<u64>, BusId)>,
) -> Result<(), MergeError> {
    for device in devices {
        if let Device::Pci(pci) = device {
            if !seen.insert((host, pci.bus_id)) {
                return Err(MergeError::Place { bus_id: pci.bus_id });
            }
            unique(&pci.devices, host, seen)?;
        }
    }
    Ok(())
}
