//! Named machines: common ones in data centres that no file here describes, and some implausible ones.

use oxccl::topology::{BusId, C2c, Cpu, Device, Gpu, Inventory, Net, Nic, NvLink, Pci};
use oxccl_shared::abi::Rank;

/// A machine under construction. Devices get addresses, ranks and numbers in the order in which they are asked for.
pub struct Shelf {
    cpu: (&'static str, &'static str, u32, u32),
    /// Compute capability of all GPUs.
    sm: u32,
    /// Chip-to-chip links, in MB/s.
    c2c_mbytes: Option<u32>,
    buses: u64,
    gpus: Vec<BusId>,
    nets: u32,
    cpus: Vec<Cpu>,
}

pub const AMD: (&str, &str, u32, u32) = ("x86_64", "AuthenticAMD", 143, 49);
pub const SKYLAKE: (&str, &str, u32, u32) = ("x86_64", "GenuineIntel", 6, 85);
pub const SAPPHIRE_RAPIDS: (&str, &str, u32, u32) = ("x86_64", "GenuineIntel", 6, 143);
pub const GRACE: (&str, &str, u32, u32) = ("arm64", "", 0, 0);
pub const POWER9: (&str, &str, u32, u32) = ("ppc64", "", 0, 0);

/// Where all NVSwitches are.
const NV_SWITCH: BusId = BusId(0xffff_fff0);

impl Shelf {
    pub fn new(cpu: (&'static str, &'static str, u32, u32), sm: u32) -> Shelf {
        Shelf { cpu, sm, c2c_mbytes: None, buses: 0, gpus: Vec::new(), nets: 0, cpus: Vec::new() }
    }

    /// GPUs that each have a link of their own into their CPU.
    pub fn with_c2c(self, mbytes: u32) -> Shelf {
        Shelf { c2c_mbytes: Some(mbytes), ..self }
    }

    fn pci(&mut self, class: u32, devices: Vec<Device>) -> Device {
        self.buses += 1;
        let speed = match self.sm {
            90.. => "32.0 GT/s PCIe",
            80.. => "16.0 GT/s PCIe",
            _ => "8.0 GT/s PCIe",
        };
        Device::Pci(Pci {
            class: Some(class),
            link_speed: Some(speed.into()),
            link_width: Some(16),
            devices,
            ..Pci::new(BusId(self.buses << 12))
        })
    }

    pub fn gpu(&mut self) -> Device {
        let rank = Some(self.gpus.len() as u32);
        let c2c = self.c2c_mbytes.map(|bw_mbytes| C2c { bw_mbytes, count: 1 });
        let gpu = Gpu {
            dev: rank,
            rank: rank.map(Rank),
            sm: Some(self.sm),
            gdr: Some(true),
            nvlinks: Vec::new(),
            c2c: c2c.into_iter().collect(),
        };
        let device = self.pci(0x03_0200, vec![Device::Gpu(gpu)]);
        self.gpus.push(BusId(self.buses << 12));
        device
    }

    pub fn nic(&mut self, gbits: u32) -> Device {
        let net = Net {
            dev: Some(self.nets),
            speed_mbits: Some(gbits * 1000),
            port: Some(1),
            guid: Some(u64::from(self.nets) + 1),
            gdr: Some(true),
            ..Net::default()
        };
        self.nets += 1;
        self.pci(0x02_0700, vec![Device::Nic(Nic { nets: vec![net] })])
    }

    pub fn switch(&mut self, devices: Vec<Device>) -> Device {
        self.pci(0x06_0400, devices)
    }

    /// A NUMA node. Those of one host follow each other.
    pub fn socket(&mut self, host: u64, devices: Vec<Device>) {
        let (arch, vendor, family, model) = self.cpu;
        let numa_id = self.cpus.iter().filter(|cpu| cpu.host_hash == Some(host)).count() as i32;
        self.cpus.push(Cpu {
            host_hash: Some(host),
            numa_id,
            arch: Some(arch.into()),
            vendor: Some(vendor.to_owned()).filter(|vendor| !vendor.is_empty()),
            family_id: Some(family),
            model_id: Some(model),
            devices,
            ..Cpu::default()
        });
    }

    /// The machine, with `count` NVLinks between each two GPUs.
    pub fn with_nvlinks(self, count: impl Fn(usize, usize) -> u32) -> Inventory {
        let link = |own: usize, peer: usize| NvLink {
            target: self.gpus[peer],
            count: count(own, peer),
            target_class: Some(0x03_0200),
        };
        let peers = |own: usize| (0..self.gpus.len()).filter(move |peer| *peer != own);
        let links =
            |own: usize| peers(own).map(|peer| link(own, peer)).filter(|link| link.count > 0).collect();
        let links: Vec<Vec<NvLink>> = (0..self.gpus.len()).map(links).collect();
        self.wired(&links)
    }

    /// The machine, whose GPUs have so many NVLinks into switches.
    pub fn with_nv_switches(self, count: u32) -> Inventory {
        let link = NvLink { target: NV_SWITCH, count, target_class: Some(0x06_8000) };
        let links = vec![vec![link]; self.gpus.len()];
        self.wired(&links)
    }

    pub fn without_nvlinks(self) -> Inventory {
        self.with_nvlinks(|_, _| 0)
    }

    fn wired(mut self, links: &[Vec<NvLink>]) -> Inventory {
        self.cpus.iter_mut().for_each(|cpu| wire(&mut cpu.devices, links));
        Inventory { version: 1, cpus: self.cpus }
    }
}

fn wire(devices: &mut [Device], links: &[Vec<NvLink>]) {
    for device in devices {
        match device {
            Device::Pci(pci) => wire(&mut pci.devices, links),
            Device::Gpu(gpu) => gpu.nvlinks = links[gpu.rank.unwrap().index()].clone(),
            Device::Nic(_) | Device::PciLink(_) => {}
        }
    }
}

/// A host of two sockets, below each of them half of so many switches with a GPU and a NIC each.
fn paired(cpu: (&'static str, &'static str, u32, u32), sm: u32, nics_gbits: &[u32]) -> Shelf {
    let mut shelf = Shelf::new(cpu, sm);
    for half in nics_gbits.chunks(nics_gbits.len().div_ceil(2)) {
        let mut switches = Vec::new();
        for gbits in half {
            let devices = vec![shelf.gpu(), shelf.nic(*gbits)];
            switches.push(shelf.switch(devices));
        }
        shelf.socket(0, switches);
    }
    shelf
}

/// A host whose sockets have so many GPUs and NICs of 200 Gb/s each.
fn sockets(
    cpu: (&'static str, &'static str, u32, u32),
    sm: u32,
    count: usize,
    gpus: usize,
    nics: usize,
) -> Shelf {
    let mut shelf = Shelf::new(cpu, sm);
    for _ in 0..count {
        let mut devices: Vec<Device> = (0..gpus).map(|_| shelf.gpu()).collect();
        devices.extend((0..nics).map(|_| shelf.nic(200)));
        shelf.socket(0, devices);
    }
    shelf
}

/// Hosts of two sockets with two GPUs and two NICs each, joined by NVSwitches.
fn rack(hosts: u64) -> Inventory {
    let mut shelf = Shelf::new(GRACE, 100).with_c2c(372_000);
    for socket in 0..2 * hosts {
        let devices = vec![shelf.gpu(), shelf.gpu(), shelf.nic(400), shelf.nic(400)];
        shelf.socket(socket / 2, devices);
    }
    shelf.with_nv_switches(18)
}

fn dgx2() -> Inventory {
    let mut shelf = Shelf::new(SKYLAKE, 70);
    for _ in 0..2 {
        let mut halves = Vec::new();
        for _ in 0..2 {
            let mut devices = vec![shelf.nic(100), shelf.nic(100)];
            for _ in 0..2 {
                let pair = vec![shelf.gpu(), shelf.gpu()];
                devices.push(shelf.switch(pair));
            }
            halves.push(shelf.switch(devices));
        }
        shelf.socket(0, halves);
    }
    shelf.with_nv_switches(6)
}

/// Eight GPUs that are two chips each, with links of four widths.
fn eight_in_pairs(a: usize, b: usize) -> u32 {
    match (a.min(b), a.max(b)) {
        (0, 1) | (2, 3) | (4, 5) | (6, 7) => 4,
        (0, 6) | (1, 3) | (2, 4) | (5, 7) => 2,
        (0, 2) | (1, 5) | (2, 6) | (3, 7) | (4, 6) => 1,
        _ => 0,
    }
}

fn power9() -> Inventory {
    let mut machine = sockets(POWER9, 70, 2, 3, 1).with_nvlinks(|a, b| if a / 3 == b / 3 { 2 } else { 0 });
    let to_cpu = NvLink { target: BusId(0x4_0000_0000), count: 2, target_class: Some(0x06_8001) };
    fn add(devices: &mut [Device], link: &NvLink) {
        for device in devices {
            match device {
                Device::Pci(pci) => add(&mut pci.devices, link),
                Device::Gpu(gpu) => gpu.nvlinks.push(link.clone()),
                Device::Nic(_) | Device::PciLink(_) => {}
            }
        }
    }
    machine.cpus.iter_mut().for_each(|cpu| add(&mut cpu.devices, &to_cpu));
    machine
}

/// All of them, by name.
pub fn machines() -> Vec<(&'static str, Inventory)> {
    let mixed = [400, 200, 100, 25, 10, 400, 200, 100];
    // Numbers of NVLinks without a pattern: not the same both ways.
    let uneven = |a: usize, b: usize| match (a * b + a + b) % 3 {
        0 => 0,
        _ => 1 + (a + 2 * b) as u32 % 3,
    };
    vec![
        ("1 GPU", sockets(AMD, 80, 1, 1, 1).without_nvlinks()),
        ("1 GPU on Grace", {
            let mut shelf = Shelf::new(GRACE, 90).with_c2c(450_000);
            let devices = vec![shelf.gpu(), shelf.nic(400)];
            shelf.socket(0, devices);
            shelf.without_nvlinks()
        }),
        ("4 GPUs, 2 sockets, 4 NICs", sockets(AMD, 80, 2, 2, 2).without_nvlinks()),
        ("4 GPUs of a Grace host", rack(1)),
        ("6 GPUs on POWER9", power9()),
        ("8 GPUs, PCI only, AMD", sockets(AMD, 80, 2, 4, 0).without_nvlinks()),
        ("8 GPUs, PCI only, Intel", sockets(SKYLAKE, 80, 2, 4, 1).without_nvlinks()),
        ("8 GPUs, 4 NUMA nodes", sockets(AMD, 80, 4, 2, 1).without_nvlinks()),
        ("8 GPUs, 64 NICs", sockets(AMD, 80, 2, 4, 32).without_nvlinks()),
        ("7 GPUs, each two links to each", paired(AMD, 80, &[200; 7]).with_nvlinks(|_, _| 2)),
        ("8 GPUs, each a link to each", sockets(AMD, 90, 2, 4, 4).with_nvlinks(|_, _| 1)),
        ("8 GPUs, each two links to each", paired(AMD, 90, &[400; 8]).with_nvlinks(|_, _| 2)),
        ("8 GPUs as pairs of chips", paired(AMD, 90, &[400; 8]).with_nvlinks(eight_in_pairs)),
        ("8 GPUs, uneven NVLinks", sockets(SKYLAKE, 80, 2, 4, 0).with_nvlinks(uneven)),
        ("8 GPUs, a star", sockets(AMD, 80, 2, 4, 0).with_nvlinks(|a, b| if a * b == 0 { 2 } else { 0 })),
        (
            "8 GPUs, bridged in pairs",
            sockets(AMD, 86, 2, 4, 0).with_nvlinks(|a, b| if a / 2 == b / 2 { 4 } else { 0 }),
        ),
        ("8 A100, NVSwitch", paired(AMD, 80, &[200; 8]).with_nv_switches(12)),
        ("8 H100, NVSwitch", paired(SAPPHIRE_RAPIDS, 90, &[400; 8]).with_nv_switches(18)),
        ("8 H100, NICs of five speeds", paired(SAPPHIRE_RAPIDS, 90, &mixed).with_nv_switches(18)),
        ("8 Blackwell, PCI only, AMD", sockets(AMD, 120, 2, 4, 2).without_nvlinks()),
        ("8 Blackwell, PCI only, Intel", sockets(SKYLAKE, 120, 2, 4, 2).without_nvlinks()),
        ("8 B200, NVSwitch", paired(SAPPHIRE_RAPIDS, 100, &[800; 8]).with_nv_switches(18)),
        ("10 GPUs, some links", sockets(SKYLAKE, 80, 2, 5, 0).with_nvlinks(uneven)),
        ("16 GPUs, DGX-2", dgx2()),
        ("16 GPUs, PCI only", sockets(SKYLAKE, 60, 2, 8, 1).without_nvlinks()),
        ("16 GPUs, each a link to each", sockets(AMD, 90, 2, 8, 8).with_nvlinks(|_, _| 1)),
        (
            "16 GPUs, a hypercube",
            sockets(SKYLAKE, 80, 2, 8, 0).with_nvlinks(|a, b| 2 * u32::from((a ^ b).is_power_of_two())),
        ),
        ("64 GPUs, PCI only", sockets(AMD, 80, 8, 8, 0).without_nvlinks()),
        ("72 GPUs, 128 NICs", sockets(AMD, 80, 8, 9, 16).without_nvlinks()),
        ("72 GPUs of 18 Grace hosts", rack(18)),
        ("128 GPUs, NVSwitch, 256 NICs", sockets(SAPPHIRE_RAPIDS, 90, 128, 1, 2).with_nv_switches(18)),
        ("144 GPUs of 36 Grace hosts", rack(36)),
    ]
}
