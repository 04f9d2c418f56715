//! Layer: host / topology / system.
//! Takes: an [`Inventory`](super::Inventory).
//! Gives: a [`System`]: nodes, and links between them with a kind and a bandwidth in GB/s for each direction.
//! Never: changes after it is built.

mod bandwidth;
mod classify;
mod draft;
mod flatten;
mod build;

pub use bandwidth::Tables;
pub(super) use bandwidth::{LOCAL_BW, through_intel};

use super::BusId;
use oxccl_shared::abi::Rank;
use std::collections::HashMap;
use thiserror::Error;

/// An index into [`System::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u16);

/// An index into [`System::links`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkId(pub u32);

/// The kind of a link, in the order of [`PathKind`](super::PathKind).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LinkKind {
    /// Inside a device.
    Loc,
    /// NVLink.
    NvLink,
    /// Chip to chip, between a GPU and its CPU.
    C2c,
    /// PCI Express.
    Pci,
    /// Between CPUs.
    Sys,
    /// To the network.
    Net,
}

/// One direction of a connection between nodes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Where it starts.
    pub from: NodeId,
    /// Where it ends.
    pub to: NodeId,
    /// Its kind.
    pub kind: LinkKind,
    /// GB/s.
    pub bw: f32,
    /// The same link in the other direction.
    pub reverse: LinkId,
}

/// A GPU.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuNode {
    /// Its address.
    pub bus_id: BusId,
    /// NVML's index on its host.
    pub dev: u32,
    /// Rank that uses it.
    pub rank: Rank,
    /// Compute capability, major times ten plus minor.
    pub sm: u32,
    /// Whether NICs may read and write its memory.
    pub gdr: bool,
    /// The chip and board's PCI device id, if known.
    pub device: Option<u16>,
    /// A GeForce: its driver offers no access between peers over PCI.
    pub is_consumer: bool,
}

/// A NUMA node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuNode {
    /// -1 where the host has no NUMA.
    pub numa_id: i32,
    /// What it is.
    pub model: CpuModel,
}

/// CPU models, as far as bandwidths and behaviour differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuModel {
    /// Intel up to Broadwell.
    IntelBroadwell,
    /// Intel from Skylake to Ice Lake.
    IntelSkylake,
    /// Intel Sapphire Rapids.
    IntelSapphireRapids,
    /// Intel Emerald Rapids and later.
    IntelEmeraldRapids,
    /// AMD.
    Amd,
    /// Zhaoxin.
    Zhaoxin,
    /// Zhaoxin Yongfeng.
    ZhaoxinYongfeng,
    /// 64-bit ARM.
    Arm,
    /// IBM POWER.
    Power,
    /// Nothing known.
    Unknown,
}

impl CpuModel {
    /// Splits reads and writes between GPUs into small PCI packets, which costs bandwidth.
    pub fn is_intel(self) -> bool {
        use CpuModel::*;
        matches!(self, IntelBroadwell | IntelSkylake | IntelSapphireRapids | IntelEmeraldRapids)
    }
}

/// A network device.
#[derive(Clone, PartialEq, Debug)]
pub struct NetNode {
    /// The host's index in the upper eight bits, the device's index on it below.
    pub id: u64,
    /// The network layer's number of it.
    pub dev: u32,
    /// `mlx5_0`, `eth0`.
    pub name: String,
    /// Devices with the same ASIC and port share bandwidth.
    pub asic: u64,
    /// Port of the adapter.
    pub port: u32,
    /// GB/s.
    pub bw: f32,
    /// Latency in microseconds.
    pub latency_us: f32,
    /// Whether it may read and write the memory of GPUs.
    pub gdr: bool,
    /// Whether it reduces in the network.
    pub coll: bool,
}

/// What a node is.
#[derive(Clone, PartialEq, Debug)]
pub enum NodeKind {
    /// A GPU.
    Gpu(GpuNode),
    /// A PCI switch.
    Pci(BusId),
    /// All NVSwitches, as one node.
    NvSwitch,
    /// A NUMA node.
    Cpu(CpuNode),
    /// A network adapter.
    Nic(BusId),
    /// A device of a network adapter.
    Net(NetNode),
}

/// A node and its outgoing links, widest first, links up the PCI tree last.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Index of its host; NVSwitches may join several.
    pub host: u8,
    /// What it is.
    pub kind: NodeKind,
    /// Links that start here.
    pub links: Vec<LinkId>,
}

/// The machine as a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct System {
    /// All nodes.
    pub nodes: Vec<Node>,
    /// All links.
    pub links: Vec<Link>,
    /// The GPUs, in the order of [`Inventory::sort_by_rank`](super::Inventory::sort_by_rank).
    pub gpus: Vec<NodeId>,
    /// The network devices.
    pub nets: Vec<NodeId>,
    /// The NUMA nodes.
    pub cpus: Vec<NodeId>,
    /// The NVSwitches.
    pub nv_switch: Option<NodeId>,
}

/// Most GPUs of a system. NCCL's largest, two halves of each GPU of a rack of 72, has 144.
pub const GPUS_MAX: usize = 144;
/// Most network devices of a system.
pub const NETS_MAX: usize = 256;
/// Most NUMA nodes of a system.
pub const CPUS_MAX: usize = 144;
/// Most nodes of a system.
pub const NODES_MAX: usize = 4096;
/// Most hosts of a system, joined by NVLink.
pub const HOSTS_MAX: usize = 128;

/// Why an inventory is no system.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SystemError {
    /// There is no GPU that a rank uses.
    #[error(
        "no GPU with a rank: {gpu_class_devices} PCI devices have a GPU's class; a skeleton file needs the live machine"
    )]
    NoGpus {
        /// PCI devices with class 0x03....
        gpu_class_devices: usize,
    },
    /// No route leads to a GPU that a rank uses.
    #[error(
        "GPU {bus_id} of rank {rank} hangs below a device that is no PCI switch; is some device's class wrong?"
    )]
    Hidden {
        /// The GPU.
        bus_id: BusId,
        /// Its rank.
        rank: Rank,
    },
    /// More devices than a system may have.
    #[error("{count} {what}: at most {max} are supported")]
    TooMany {
        /// The kind of device.
        what: &'static str,
        /// Their number.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// An NVLink that only one end reports.
    #[error("GPU {from} has an NVLink to {to}, which has none back")]
    OneWay {
        /// The end that reports it.
        from: BusId,
        /// The other end.
        to: BusId,
    },
    /// A PCI link to an address that is not in the inventory.
    #[error("PCI device {from} has a link to {to}, which does not exist")]
    Dangling {
        /// Its start.
        from: BusId,
        /// Its end.
        to: BusId,
    },
}

impl System {
    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[usize::from(id.0)]
    }

    /// The link.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.0 as usize]
    }

    /// The GPU of a node in [`Self::gpus`].
    ///
    /// # Panics
    /// If the node is no GPU.
    pub fn gpu(&self, id: NodeId) -> &GpuNode {
        match &self.node(id).kind {
            NodeKind::Gpu(gpu) => gpu,
            other => panic!("node {id:?} is {other:?}, expected a GPU"),
        }
    }

    /// The network device of a node in [`Self::nets`].
    ///
    /// # Panics
    /// If the node is no network device.
    pub fn net(&self, id: NodeId) -> &NetNode {
        match &self.node(id).kind {
            NodeKind::Net(net) => net,
            other => panic!("node {id:?} is {other:?}, expected a network device"),
        }
    }

    /// The NUMA node's model, for a node of [`Self::cpus`].
    pub fn cpu_model(&self, id: NodeId) -> CpuModel {
        match &self.node(id).kind {
            NodeKind::Cpu(cpu) => cpu.model,
            _ => CpuModel::Unknown,
        }
    }

    /// The least compute capability.
    pub fn sm_min(&self) -> u32 {
        self.gpus.iter().map(|id| self.gpu(*id).sm).min().unwrap_or(0)
    }

    /// A GPU's number in graph files: its host's index in the upper eight bits, NVML's index below.
    pub fn dev_of_rank(&self, rank: Rank) -> Option<u64> {
        let id = self.gpus.iter().find(|id| self.gpu(**id).rank == rank)?;
        Some(u64::from(self.node(*id).host) << 56 | u64::from(self.gpu(*id).dev))
    }

    /// The rank of a GPU's number in graph files.
    pub fn rank_of_dev(&self, dev: u64) -> Option<Rank> {
        let is_it =
            |id: &&NodeId| u64::from(self.node(**id).host) << 56 | u64::from(self.gpu(**id).dev) == dev;
        self.gpus.iter().find(is_it).map(|id| self.gpu(*id).rank)
    }

    /// The first two ranks whose GPUs have one number, so that a graph file cannot tell them apart. Processes that see one GPU each can
    /// number so.
    pub fn one_dev_of_two(&self) -> Option<[Rank; 2]> {
        let mut first = HashMap::new();
        self.gpus.iter().find_map(|id| {
            let rank = self.gpu(*id).rank;
            Some([first.insert(self.dev_of_rank(rank), rank)?, rank])
        })
    }

    /// The same system without network devices: no rank is on another host.
    pub fn without_network(mut self) -> System {
        self.nets.clear();
        self
    }
}
