//! Layer: host / topology, above the paths.
//! Takes: the known inventory of a host, one of its GPUs, and the network device that this GPU uses.
//! Gives: [`NicReach`]: the distance between the two, and the other facts that decide on GPUDirect RDMA.
//! Never: a route that a policy has diverted: the caller asks for the physical route.

use super::detect::{GpuFacts, NetFacts, Sysfs, complete};
use super::system::NodeKind;
use super::{Device, Inventory, PathKind, PathPolicy, Paths, PeerAccess, System, Tables};

/// How a network device reaches a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicReach {
    /// Path type between them.
    pub kind: PathKind,
    /// Whether the GPU reaches its CPU by a chip-to-chip link.
    pub has_c2c: bool,
    /// Whether the GPU has NVLink to another GPU of the host in use, or is the only GPU.
    pub is_joined: bool,
}

impl NicReach {
    /// The distance between a network device and a GPU. A network device without an address is no PCI device. `known`
    /// is an inventory that overrides this machine's, from a user's file for example. `None` if the result is no
    /// valid system.
    pub fn find(known: Option<&Inventory>, sysfs: &Sysfs, gpu: GpuFacts, nic: NetFacts) -> Option<NicReach> {
        let mut inventory = known.cloned().unwrap_or_else(Inventory::new);
        inventory.cpus.iter_mut().for_each(|cpu| keep_nic(&mut cpu.devices, &nic));
        let bus_id = gpu.bus_id;
        let (gpu, nic) = (GpuFacts { gdr: Some(true), ..gpu }, NetFacts { gdr: true, ..nic });
        let inventory = complete(inventory, sysfs, &[gpu], &[nic]);
        let system = System::new(&inventory, Tables::Current).ok()?;
        let everything = Some(PathKind::Dis);
        let policy = PathPolicy {
            p2p_level: everything,
            gdr_level: everything,
            pxn: false,
            peer_access: PeerAccess::Except(Vec::new()),
            ..PathPolicy::default()
        };
        let paths = Paths::new(&system, &policy);
        let is_ours = |node: &&super::system::NodeId| matches!(&system.node(**node).kind, NodeKind::Gpu(gpu) if gpu.bus_id == bus_id);
        let (gpu, nic) = (*system.gpus.iter().find(is_ours)?, *system.nets.first()?);
        let cpu = paths.local_cpu(&system, gpu);
        let mut others = system.gpus.iter().filter(|other| **other != gpu);
        Some(NicReach {
            kind: paths.between(gpu, nic).kind,
            has_c2c: cpu.is_some_and(|cpu| paths.between(gpu, cpu).kind == PathKind::C2c),
            is_joined: system.gpus.len() == 1
                || others.any(|other| paths.between(gpu, *other).kind == PathKind::Nvl),
        })
    }
}

/// Removes all network devices but one. That one may be used, whatever the file says about GPUDirect RDMA.
fn keep_nic(devices: &mut [Device], nic: &NetFacts) {
    for device in devices {
        match device {
            Device::Pci(pci) => keep_nic(&mut pci.devices, nic),
            Device::Nic(adapter) => {
                adapter.nets.retain(|net| {
                    net.name.as_deref() == Some(&*nic.name) && net.port.unwrap_or(nic.port) == nic.port
                });
                adapter.nets.iter_mut().for_each(|net| net.gdr = Some(true));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{BusId, C2c, NvLink};
    use oxccl_shared::abi::Rank;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    const GPU: BusId = BusId(0x43 << 12);
    const GPU_PATH: &str = "pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0/0000:43:00.0";

    /// Creates a device below `root` as sysfs shows it.
    fn device(root: &Path, path: &str, numa_node: u32) {
        let directory = root.join("sys/devices").join(path);
        create_dir_all(&directory).unwrap();
        write(directory.join("numa_node"), format!("{numa_node}\n")).unwrap();
        let all = root.join("sys/bus/pci/devices");
        create_dir_all(&all).unwrap();
        symlink(&directory, all.join(path.rsplit('/').next().unwrap())).unwrap();
    }

    fn gpu() -> GpuFacts {
        GpuFacts { dev: Some(0), rank: Some(Rank(3)), sm: Some(90), ..GpuFacts::unknown(GPU) }
    }

    fn nic(bus_id: Option<BusId>) -> NetFacts {
        NetFacts { name: "mlx5_0".into(), bus_id, speed_mbits: None, port: 1, guid: None, gdr: true }
    }

    #[test]
    fn distances_are_those_of_the_pci_tree() {
        let root = tempfile::tempdir().unwrap();
        device(root.path(), GPU_PATH, 1);
        let switch = "pci0000:40/0000:40:01.0/0000:41:00.0";
        let places = [
            (0x44, PathKind::Pix, format!("{switch}/0000:42:01.0/0000:44:00.0"), 1),
            (0x47, PathKind::Pxb, format!("{switch}/0000:42:02.0/0000:45:00.0/0000:46:00.0/0000:47:00.0"), 1),
            (0x51, PathKind::Phb, "pci0000:40/0000:40:03.0/0000:51:00.0".into(), 1),
            (0x05, PathKind::Sys, "pci0000:00/0000:00:01.0/0000:05:00.0".into(), 0),
        ];
        let sysfs = Sysfs::at(root.path());
        for (bus, kind, path, numa_node) in places {
            device(root.path(), &path, numa_node);
            let found = NicReach::find(None, &sysfs, gpu(), nic(Some(BusId::new(0, bus, 0))));
            assert_eq!(found, Some(NicReach { kind, has_c2c: false, is_joined: true }), "{path}");
        }
        // A virtual device is placed at the process's NUMA node.
        let found = NicReach::find(None, &sysfs, gpu(), nic(None)).unwrap();
        assert_eq!(found.kind, PathKind::Phb);
        let c2c = vec![C2c { bw_mbytes: 44_712, count: 10 }];
        let found = NicReach::find(None, &sysfs, GpuFacts { c2c, ..gpu() }, nic(None)).unwrap();
        assert_eq!((found.kind, found.has_c2c), (PathKind::P2c, true));
    }

    /// A user's file overrides this machine. A NIC that the file describes may be used if this machine's NIC may.
    #[test]
    fn what_is_known_already_holds() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = Sysfs::at(root.path());
        let mut known = Inventory::new();
        device(root.path(), GPU_PATH, 1);
        device(root.path(), "pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:01.0/0000:44:00.0", 1);
        let at_44 = NetFacts { gdr: false, ..nic(Some(BusId::new(0, 0x44, 0))) };
        let other = NetFacts { name: "mlx5_1".into(), ..nic(None) };
        known = complete(known, &sysfs, &[gpu()], &[at_44, other]);
        let nowhere = Sysfs::at(root.path().join("nothing"));
        let bus_id = Some(BusId::new(0, 0x44, 0));
        let found = NicReach::find(Some(&known), &nowhere, gpu(), nic(bus_id)).unwrap();
        assert_eq!(found.kind, PathKind::Pix);
        assert_ne!(
            NicReach::find(None, &nowhere, gpu(), nic(bus_id)).map(|found| found.kind),
            Some(PathKind::Pix)
        );
    }

    #[test]
    fn gpus_are_joined_by_nvlink_or_not() {
        let root = tempfile::tempdir().unwrap();
        let second = BusId::new(0, 0x61, 0);
        device(root.path(), GPU_PATH, 1);
        device(root.path(), "pci0000:60/0000:60:01.0/0000:61:00.0", 1);
        let sysfs = Sysfs::at(root.path());
        let joined = |nvlinks: Vec<NvLink>, back: Vec<NvLink>| {
            let first = GpuFacts { nvlinks, ..gpu() };
            let second =
                GpuFacts { dev: Some(1), rank: Some(Rank(4)), nvlinks: back, ..GpuFacts::unknown(second) };
            let known = complete(Inventory::new(), &sysfs, &[first, second], &[]);
            NicReach::find(Some(&known), &sysfs, gpu(), nic(None)).unwrap().is_joined
        };
        let link = |target| vec![NvLink { target, count: 4, target_class: Some(0x03_0200) }];
        assert!(joined(link(second), link(GPU)) && !joined(Vec::new(), Vec::new()));
    }
}
