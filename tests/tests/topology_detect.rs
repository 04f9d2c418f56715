//! Layer: tests.
//! Takes: made-up `/sys` and `/proc` trees of several shapes.
//! Gives: proof that devices get their positions, and that missing facts count as near.
//! Never: the machine that runs the test.

use oxccl::topology::detect::{GpuFacts, NetFacts, Sysfs, complete, processors};
use oxccl::topology::search::{Graphs, SearchConfig};
use oxccl::topology::xml::{read_topology, write_topology};
use oxccl::topology::{BusId, Device, Inventory, NvLink, PathKind, PathPolicy, Paths, Pci, System, Tables};
use oxccl_shared::abi::Rank;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A tree that looks like a host's.
struct Host {
    root: TempDir,
}

impl Host {
    fn new(cpuinfo: &str) -> Host {
        let host = Host { root: tempfile::tempdir().unwrap() };
        host.write("proc/cpuinfo", cpuinfo);
        fs::create_dir_all(host.path("sys/bus/pci/devices")).unwrap();
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A device below `ports`, whose links have the given speed and width.
    fn device(&self, ports: &[&str], numa: Option<i32>, class: &str, speed: &str, width: u32) -> PathBuf {
        let mut directory = "sys/devices/pci0000:00".to_owned();
        for port in ports {
            directory = format!("{directory}/{port}");
            self.write(&format!("{directory}/max_link_speed"), &format!("{speed}\n"));
            self.write(&format!("{directory}/max_link_width"), &format!("{width}\n"));
            self.write(&format!("{directory}/class"), "0x060400\n");
            self.write(&format!("{directory}/vendor"), "0x10de\n");
            if let Some(numa) = numa {
                self.write(&format!("{directory}/numa_node"), &format!("{numa}\n"));
            }
            let link = self.path(&format!("sys/bus/pci/devices/{port}"));
            if !link.exists() {
                symlink(self.path(&directory), link).unwrap();
            }
        }
        self.write(&format!("{directory}/class"), &format!("{class}\n"));
        self.path(&directory)
    }

    fn interface(&self, name: &str, device: Option<&Path>, speed: &str) {
        self.write(&format!("sys/class/net/{name}/operstate"), "up\n");
        self.write(&format!("sys/class/net/{name}/speed"), &format!("{speed}\n"));
        if let Some(device) = device {
            symlink(device, self.path(&format!("sys/class/net/{name}/device"))).unwrap();
        }
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.root.path())
    }
}

const XEON: &str =
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: Xeon\n";

fn bus(text: &str) -> BusId {
    text.parse().unwrap()
}

fn gpu(dev: u32, bus_id: &str) -> GpuFacts {
    GpuFacts {
        bus_id: bus(bus_id),
        dev: Some(dev),
        rank: Some(Rank(dev)),
        sm: Some(80),
        gdr: Some(true),
        nvlinks: vec![],
        c2c: vec![],
    }
}

fn nic(name: &str, bus_id: Option<&str>) -> NetFacts {
    NetFacts {
        name: name.into(),
        bus_id: bus_id.map(bus),
        speed_mbits: Some(200_000),
        port: 1,
        guid: None,
        gdr: true,
    }
}

/// The addresses of PCI devices, children in brackets.
fn shape(devices: &[Device]) -> String {
    let pci = devices.iter().filter_map(|device| match device {
        Device::Pci(pci) => Some(pci),
        _ => None,
    });
    let one = |pci: &Pci| match shape(&pci.devices) {
        inner if inner.is_empty() => pci.bus_id.to_string(),
        inner => format!("{}[{inner}]", pci.bus_id),
    };
    pci.map(one).collect::<Vec<_>>().join(" ")
}

fn kind(inventory: &Inventory, a: usize, b: usize) -> PathKind {
    let system = System::new(inventory, Tables::Current).unwrap();
    Paths::new(&system, &PathPolicy::default()).between(system.gpus[a], system.gpus[b]).kind
}

#[test]
fn two_sockets_with_switches_two_deep() {
    let host = Host::new(XEON);
    host.write("sys/devices/system/node/node0/cpumap", "0000ffff\n");
    host.write("sys/devices/system/node/node1/cpumap", "ffff0000\n");
    let fast = "16.0 GT/s PCIe";
    // Root port, upper switch (port above, port below), lower switch, device.
    let upper = ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"];
    for (port, device) in [("0000:04:00.0", "0000:05:00.0"), ("0000:04:01.0", "0000:06:00.0")] {
        host.device(&[&upper[..], &[port, device]].concat(), Some(0), "0x030200", fast, 16);
    }
    host.device(
        &["0000:00:01.0", "0000:01:00.0", "0000:02:01.0", "0000:07:00.0"],
        Some(0),
        "0x020700",
        fast,
        16,
    );
    host.device(&["0000:80:01.0", "0000:81:00.0"], Some(1), "0x030200", fast, 8);
    let gpus = [gpu(0, "0000:05:00.0"), gpu(1, "0000:06:00.0"), gpu(2, "0000:81:00.0")];
    let inventory = complete(Inventory::new(), &host.sysfs(), &gpus, &[nic("mlx5_0", Some("0000:07:00.0"))]);

    assert_eq!(inventory.cpus.iter().map(|cpu| cpu.numa_id).collect::<Vec<_>>(), [0, 1]);
    let (first, second) = (&inventory.cpus[0], &inventory.cpus[1]);
    assert_eq!(first.affinity.as_deref(), Some("0000ffff"));
    assert_eq!(
        (first.vendor.as_deref(), first.family_id, first.model_id),
        (Some("GenuineIntel"), Some(6), Some(106))
    );
    assert_eq!(shape(&first.devices), "0000:01:00.0[0000:03:00.0[0000:05:00.0 0000:06:00.0] 0000:07:00.0]");
    assert_eq!(shape(&second.devices), "0000:81:00.0");
    let Device::Pci(alone) = &second.devices[0] else { panic!("{second:?}") };
    assert_eq!(
        (alone.link_speed.as_deref(), alone.link_width, alone.class),
        (Some(fast), Some(8), Some(0x03_0200))
    );
    assert_eq!((kind(&inventory, 0, 1), kind(&inventory, 0, 2)), (PathKind::Pix, PathKind::Sys));
    assert_eq!(read_topology(&write_topology(&inventory)), Ok(inventory));
}

#[test]
fn a_virtual_machine_shows_a_flat_bus_and_no_numa() {
    let host = Host::new(XEON);
    host.device(&["0000:00:06.0"], Some(-1), "0x030200", "Unknown", 255);
    host.device(&["0000:00:07.0"], None, "0x030200", "Unknown", 0);
    host.interface("eth0", None, "-1");
    host.interface("lo", None, "10000");
    let switch = vec![NvLink { target: bus("fffffff:ff:ff.0"), count: 18, target_class: Some(0x06_8000) }];
    let gpus = ["0000:00:06.0", "0000:00:07.0"].map(bus).into_iter().enumerate();
    let gpus: Vec<GpuFacts> = gpus
        .map(|(dev, bus_id)| GpuFacts { bus_id, nvlinks: switch.clone(), ..gpu(dev as u32, "0:0.0") })
        .collect();
    let sysfs = host.sysfs();
    let inventory = complete(Inventory::new(), &sysfs, &gpus, &sysfs.interfaces());
    assert_eq!(inventory.cpus.len(), 1);
    let cpu = &inventory.cpus[0];
    assert_eq!((cpu.numa_id, cpu.affinity.as_deref()), (-1, None));
    assert_eq!(shape(&cpu.devices), "0000:00:06.0 0000:00:07.0");
    let Device::Pci(pci) = &cpu.devices[0] else { panic!("{cpu:?}") };
    assert_eq!((pci.link_speed.as_deref(), pci.link_width), (None, Some(0)));
    let nets: Vec<_> = cpu
        .devices
        .iter()
        .filter_map(|device| if let Device::Nic(nic) = device { Some(&nic.nets) } else { None })
        .collect();
    assert_eq!(
        (nets.len(), nets[0].len(), nets[0][0].name.as_deref(), nets[0][0].speed_mbits),
        (1, 1, Some("eth0"), None)
    );
    assert_eq!(kind(&inventory, 0, 1), PathKind::Nvl);
}

#[test]
fn nothing_is_needed() {
    let host = Host { root: tempfile::tempdir().unwrap() };
    let inventory = complete(
        Inventory::new(),
        &host.sysfs(),
        &[gpu(0, "0000:01:00.0"), gpu(1, "0000:02:00.0")],
        &[nic("eth0", None)],
    );
    assert_eq!(shape(&inventory.cpus[0].devices), "0000:01:00.0 0000:02:00.0");
    assert_eq!(kind(&inventory, 0, 1), PathKind::Phb);
    let system = System::new(&inventory, Tables::Current).unwrap();
    let graphs =
        Graphs::search(&system, &Paths::new(&system, &PathPolicy::default()), &SearchConfig::default());
    assert!(!graphs.ring.lanes.is_empty());
}

/// Nodes without a device stay, since ranks are threads there.
#[test]
fn a_host_without_gpus_has_its_nodes_and_nics() {
    let host = Host::new(XEON);
    host.write("sys/devices/system/node/node0/cpumap", "0000ffff\n");
    host.write("sys/devices/system/node/node10/cpumap", "ff0000\n");
    host.write("sys/devices/system/node/node2/cpumap", "f0000000\n");
    host.write("sys/devices/system/node/possible", "0-10\n");
    let device = host.device(&["0000:80:01.0", "0000:81:00.0"], Some(2), "0x020000", "16.0 GT/s PCIe", 8);
    host.interface("eth0", Some(&device), "25000");
    let sysfs = host.sysfs();
    let inventory = processors(Inventory::new(), &sysfs, &sysfs.nets());
    let nodes: Vec<_> = inventory.cpus.iter().map(|cpu| (cpu.numa_id, shape(&cpu.devices))).collect();
    let expected = [(0, ""), (2, "0000:81:00.0"), (10, "")].map(|(node, devices)| (node, devices.to_owned()));
    assert_eq!(nodes, expected);
    assert_eq!(inventory.cpus[1].affinity.as_deref(), Some("f0000000"));
    // A container may show nothing at all.
    let nothing = Host { root: tempfile::tempdir().unwrap() };
    let inventory = processors(Inventory::new(), &nothing.sysfs(), &nothing.sysfs().nets());
    assert_eq!(inventory.cpus.iter().map(|cpu| cpu.numa_id).collect::<Vec<_>>(), [-1]);
}

#[test]
fn rdma_devices_are_found_by_port() {
    let host = Host::new(XEON);
    let device = host.device(&["0000:00:02.0", "0000:41:00.0"], Some(0), "0x020700", "32.0 GT/s PCIe", 16);
    for (name, port, rate) in [("mlx5_10", 1, "400 Gb/sec (4X NDR)"), ("mlx5_2", 2, "56 Gb/sec (4X FDR)")] {
        host.write(&format!("sys/class/infiniband/{name}/node_guid"), "9c05:9103:001b:2ffe\n");
        host.write(&format!("sys/class/infiniband/{name}/ports/{port}/rate"), rate);
        symlink(&device, host.path(&format!("sys/class/infiniband/{name}/device"))).unwrap();
    }
    let found = host.sysfs().rdma_devices();
    let facts: Vec<_> =
        found.iter().map(|net| (net.name.as_str(), net.port, net.speed_mbits, net.gdr)).collect();
    assert_eq!(facts, [("mlx5_2", 2, Some(56_000), false), ("mlx5_10", 1, Some(400_000), false)]);
    assert_eq!((found[0].bus_id, found[0].guid), (Some(bus("0000:41:00.0")), Some(0x9c05_9103_001b_2ffe)));
    host.write("sys/module/nvidia_peermem/version", "1");
    assert!(host.sysfs().rdma_devices()[0].gdr);
}

/// Azure's skeleton says which GPU shares a switch with which NIC; the virtual machine itself shows a flat bus.
#[test]
fn a_skeleton_is_filled_and_kept() {
    let host = Host::new(XEON);
    let skeleton = read_topology(include_str!("fixtures/topology/azure-ndv4.xml")).unwrap();
    let gpus = [
        "0001:00:00.0",
        "0002:00:00.0",
        "0003:00:00.0",
        "0004:00:00.0",
        "000b:00:00.0",
        "000c:00:00.0",
        "000d:00:00.0",
        "000e:00:00.0",
    ];
    let gpus: Vec<GpuFacts> = gpus.iter().enumerate().map(|(dev, bus_id)| gpu(dev as u32, bus_id)).collect();
    let nics: Vec<NetFacts> = (1..=8)
        .map(|i| nic(&format!("mlx5_ib{}", i - 1), Some(&format!("{:04x}:00:00.0", 0x100 + i))))
        .collect();
    let inventory = complete(skeleton.clone(), &host.sysfs(), &gpus, &nics);
    let shapes =
        |inventory: &Inventory| inventory.cpus.iter().map(|cpu| shape(&cpu.devices)).collect::<Vec<_>>();
    assert_eq!(
        shapes(&inventory),
        shapes(&skeleton),
        "all devices of the skeleton are there, in their places"
    );
    let system = System::new(&inventory, Tables::Current).unwrap();
    assert_eq!((system.gpus.len(), system.nets.len()), (8, 8));
    let paths = Paths::new(&system, &PathPolicy::default());
    let near = |gpu: usize| paths.best_of(system.gpus[gpu], &system.nets).len();
    assert!((0..8).all(|gpu| near(gpu) == 2), "each GPU has the two NICs of its switch near");
    // One GPU less, and what is not used is left out.
    let less = complete(skeleton, &host.sysfs(), &gpus[..1], &[]);
    assert_eq!(shapes(&less).len(), 1);
}

/// NCCL writes the interfaces of a virtual machine beside its PCI devices. Read again on that machine they are the same interfaces,
/// and a rank's description of its host is one that others can read.
#[test]
fn a_dump_of_nccl_is_read_again_where_it_was_written() {
    let host = Host::new("vendor_id : GenuineIntel\ncpu family : 6\nmodel : 207\n");
    let device = host.device(&["0000:00:03.0"], None, "0x020000", "", 0);
    host.interface("eth0", Some(&device), "10000");
    let dump = read_topology(
        r#"<system version="1">
  <cpu host_hash="0xc069cbc870499391" numaid="-1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:00:06.0" class="0x030200" vendor="0x10de" device="0x2335" link_speed="32.0 GT/s PCIe" link_width="0">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
    <nic>
      <net name="eth0" dev="0" latency="0" speed="10000" port="0" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>"#,
    )
    .unwrap();
    let sysfs = host.sysfs();
    let nets = sysfs.nets();
    assert_eq!(nets.len(), 1);
    let inventory = complete(dump.clone(), &sysfs, &[], &nets);
    let text = write_topology(&inventory);
    assert_eq!(text.matches("eth0").count(), 1, "{text}");
    assert_eq!(read_topology(&text).unwrap(), inventory);
}
