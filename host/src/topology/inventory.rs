//! Layer: host / topology.
//! Takes: nothing; `xml` or detection fills it.
//! Gives: [`Inventory`], the tree of a host's devices, with the attributes of NCCL's topology format. `None` is an
//! attribute that the source does not state: a skeleton file leaves it to detection.
//! Never: computed numbers: `system` derives bandwidths from these facts.

use super::BusId;
use oxccl_shared::abi::Rank;

/// CPUs and the devices below them.
#[derive(Clone, PartialEq, Debug)]
pub struct Inventory {
    /// Version of the format; 1 so far.
    pub version: u32,
    /// NUMA nodes.
    pub cpus: Vec<Cpu>,
}

/// A NUMA node.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cpu {
    /// Distinguishes hosts in a file that describes several.
    pub host_hash: Option<u64>,
    /// -1 where the host has no NUMA.
    pub numa_id: i32,
    /// Mask of cores in the kernel's notation: groups of 8 hexadecimal digits with commas between.
    pub affinity: Option<String>,
    /// `x86_64`, `arm64` or `ppc64`.
    pub arch: Option<String>,
    /// Vendor string of `cpuid`: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// x86 family.
    pub family_id: Option<u32>,
    /// x86 model.
    pub model_id: Option<u32>,
    /// Devices below this CPU.
    pub devices: Vec<Device>,
}

/// A device below a CPU or a PCI device.
#[derive(Clone, PartialEq, Debug)]
pub enum Device {
    /// A PCI switch or device.
    Pci(Pci),
    /// The GPU function of a PCI device.
    Gpu(Gpu),
    /// The NIC function of a PCI device, or a NIC without one.
    Nic(Nic),
    /// A second link from this PCI switch to another switch.
    PciLink(BusId),
}

/// A PCI switch or device.
#[derive(Clone, PartialEq, Debug)]
pub struct Pci {
    /// Its address.
    pub bus_id: BusId,
    /// Class, subclass and interface: `0x060400` a bridge, `0x03....` a GPU, `0x02....` a NIC, `0x068000` an NVSwitch.
    pub class: Option<u32>,
    /// Vendor of the chip.
    pub vendor: Option<u16>,
    /// The chip.
    pub device: Option<u16>,
    /// Vendor of the board.
    pub subsystem_vendor: Option<u16>,
    /// The board.
    pub subsystem_device: Option<u16>,
    /// The kernel's text: `16.0 GT/s PCIe`.
    pub link_speed: Option<String>,
    /// Lanes; 0 where a VM hides them.
    pub link_width: Option<u32>,
    /// Devices below this one, or its own function.
    pub devices: Vec<Device>,
}

impl Pci {
    /// A device of which only the address is known.
    pub fn new(bus_id: BusId) -> Pci {
        Pci {
            bus_id,
            class: None,
            vendor: None,
            device: None,
            subsystem_vendor: None,
            subsystem_device: None,
            link_speed: None,
            link_width: None,
            devices: Vec::new(),
        }
    }
}

/// A GPU.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gpu {
    /// NVML's index on its host.
    pub dev: Option<u32>,
    /// Compute capability, major times ten plus minor.
    pub sm: Option<u32>,
    /// Rank that uses this GPU.
    pub rank: Option<Rank>,
    /// Whether NICs may read and write its memory.
    pub gdr: Option<bool>,
    /// NVLinks, one entry for each peer.
    pub nvlinks: Vec<NvLink>,
    /// Chip-to-chip links to its CPU.
    pub c2c: Vec<C2c>,
}

/// Links from a GPU to one NVLink peer.
#[derive(Clone, PartialEq, Debug)]
pub struct NvLink {
    /// Address of a GPU or an NVSwitch.
    pub target: BusId,
    /// Number of links.
    pub count: u32,
    /// PCI class of the peer: distinguishes a switch from a GPU.
    pub target_class: Option<u32>,
}

/// Chip-to-chip links of a GPU.
#[derive(Clone, PartialEq, Debug)]
pub struct C2c {
    /// Bandwidth of one link, in MB/s.
    pub bw_mbytes: u32,
    /// Number of links.
    pub count: u32,
}

/// A network adapter: its ports as the network layer numbers them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Nic {
    /// Ports.
    pub nets: Vec<Net>,
}

/// A network device.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Net {
    /// `mlx5_0`, `eth0`.
    pub name: Option<String>,
    /// Name: `mlx5_0`, `eth0`.
    pub dev: Option<u32>,
    /// Line rate in Mb/s.
    pub speed_mbits: Option<u32>,
    /// Port of the adapter.
    pub port: Option<u32>,
    /// Latency in microseconds; 0 where unknown.
    pub latency_us: Option<f32>,
    /// Identifies the adapter: ports with the same GUID share its bandwidth.
    pub guid: Option<u64>,
    /// Most connections that the device accepts.
    pub connections_max: Option<u32>,
    /// Whether it may read and write the memory of GPUs.
    pub gdr: Option<bool>,
    /// Whether it reduces in the network.
    pub coll: Option<bool>,
    /// Rail of the fabric, if known.
    pub rail: Option<u32>,
    /// Plane of the fabric, if known.
    pub plane: Option<u32>,
}

impl Inventory {
    /// An empty inventory.
    pub fn new() -> Inventory {
        Inventory { version: 1, cpus: Vec::new() }
    }

    /// All GPUs with their PCI devices, in tree order.
    pub fn gpus(&self) -> Vec<(&Pci, &Gpu)> {
        let mut found = Vec::new();
        self.cpus.iter().for_each(|cpu| gpus_below(&cpu.devices, None, &mut found));
        found
    }

    /// Sorts as if ranks had added themselves one after the other, each its own GPU and the devices above it, rank 0
    /// also all network devices. NCCL's dumps have this order, and its channels follow it.
    pub fn sort_by_rank(&mut self) {
        self.cpus.iter_mut().for_each(|cpu| sort_below(&mut cpu.devices));
        self.cpus.sort_by_key(|cpu| first_rank(&cpu.devices));
    }

    /// Numbers GPUs in tree order if none has a rank: a file written by hand describes all GPUs.
    pub fn number_ranks(&mut self) {
        if self.gpus().iter().all(|(_, gpu)| gpu.rank.is_none()) {
            let mut next = 0;
            self.cpus.iter_mut().for_each(|cpu| number_below(&mut cpu.devices, &mut next));
        }
    }
}

impl Default for Inventory {
    fn default() -> Self {
        Inventory::new()
    }
}

fn gpus_below<'a>(devices: &'a [Device], parent: Option<&'a Pci>, found: &mut Vec<(&'a Pci, &'a Gpu)>) {
    for device in devices {
        match device {
            Device::Pci(pci) => gpus_below(&pci.devices, Some(pci), found),
            Device::Gpu(gpu) => found.extend(parent.map(|pci| (pci, gpu))),
            Device::Nic(_) | Device::PciLink(_) => {}
        }
    }
}

/// The lowest rank below some devices.
fn first_rank(devices: &[Device]) -> Rank {
    const NONE: Rank = Rank(u32::MAX);
    let rank = |device: &Device| match device {
        Device::Pci(pci) => first_rank(&pci.devices),
        Device::Gpu(gpu) => gpu.rank.unwrap_or(NONE),
        Device::Nic(_) => Rank(0),
        Device::PciLink(_) => NONE,
    };
    devices.iter().map(rank).min().unwrap_or(NONE)
}

fn sort_below(devices: &mut [Device]) {
    for device in devices.iter_mut() {
        if let Device::Pci(pci) = device {
            sort_below(&mut pci.devices);
        }
    }
    devices.sort_by_key(|device| first_rank(std::slice::from_ref(device)));
}

fn number_below(devices: &mut [Device], next: &mut u32) {
    for device in devices {
        match device {
            Device::Pci(pci) => number_below(&mut pci.devices, next),
            Device::Gpu(gpu) => {
                gpu.rank = Some(Rank(*next));
                gpu.dev.get_or_insert(*next);
                *next += 1;
            }
            Device::Nic(_) | Device::PciLink(_) => {}
        }
    }
}
