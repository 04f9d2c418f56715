//! Machines that do not exist.

use oxccl::topology::{BusId, Cpu, Device, Gpu, Inventory, Net, Nic, NvLink, Pci};
use oxccl_shared::abi::Rank;
use proptest::prelude::*;

/// What a machine is made of: per GPU its socket and switch, NVLinks, NICs.
#[derive(Clone, Debug)]
pub struct Recipe {
    sm: u32,
    cpu: usize,
    /// Socket and switch of each GPU.
    gpus: Vec<(usize, usize)>,
    nics: Vec<(usize, usize, u32, bool)>,
    /// 0: none; 1: a switch; 2: the given pairs.
    nvlink: u32,
    pairs: Vec<u32>,
    lanes: u32,
}

pub fn recipe() -> impl Strategy<Value = Recipe> {
    let place = (0usize..3, 0usize..3);
    (
        proptest::sample::select(vec![60u32, 70, 80, 86, 90, 100]),
        0usize..5,
        proptest::collection::vec(place, 1..10),
        proptest::collection::vec((0usize..3, 0usize..3, 1u32..400_000, any::<bool>()), 0..6),
        0u32..3,
        proptest::collection::vec(0u32..5, 45),
        1u32..17,
    )
        .prop_map(|(sm, cpu, gpus, nics, nvlink, pairs, lanes)| Recipe {
            sm,
            cpu,
            gpus,
            nics,
            nvlink,
            pairs,
            lanes,
        })
}

const CPUS: [(&str, &str, u32, u32); 5] = [
    ("x86_64", "GenuineIntel", 6, 79),
    ("x86_64", "GenuineIntel", 6, 207),
    ("x86_64", "AuthenticAMD", 25, 1),
    ("arm64", "", 0, 0),
    ("ppc64", "", 0, 0),
];

impl Recipe {
    fn bus(socket: usize, switch: usize, device: usize) -> BusId {
        BusId((socket as u64) << 20 | (switch as u64) << 12 | (device as u64) << 4)
    }

    fn nvlinks(&self, own: usize) -> Vec<NvLink> {
        let link = |target, count, class| NvLink { target, count, target_class: Some(class) };
        match self.nvlink {
            1 => vec![link(BusId(0xffff_fff0), 18, 0x06_8000)],
            2 => (0..self.gpus.len())
                .filter(|peer| *peer != own)
                .map(|peer| {
                    let (a, b) = (own.min(peer), own.max(peer));
                    link(
                        self.gpu_bus(peer),
                        self.pairs[(a * 7 + b * 3) % self.pairs.len()].saturating_sub(2),
                        0x03_0200,
                    )
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    pub fn gpu_buses(&self) -> impl Iterator<Item = BusId> {
        (0..self.gpus.len()).map(|gpu| self.gpu_bus(gpu))
    }

    fn gpu_bus(&self, gpu: usize) -> BusId {
        Recipe::bus(self.gpus[gpu].0, self.gpus[gpu].1, gpu + 1)
    }

    pub fn inventory(&self) -> Inventory {
        let (arch, vendor, family, model) = CPUS[self.cpu];
        let pci = |bus_id, class| Pci {
            class: Some(class),
            link_speed: Some("16.0 GT/s PCIe".into()),
            link_width: Some(self.lanes),
            ..Pci::new(bus_id)
        };
        let sockets = (0..3).map(|socket| {
            let switches = (0..3).map(|switch| {
                let mut devices = Vec::new();
                for gpu in (0..self.gpus.len()).filter(|gpu| self.gpus[*gpu] == (socket, switch)) {
                    let facts = Gpu {
                        dev: Some(gpu as u32),
                        rank: Some(Rank(gpu as u32)),
                        sm: Some(self.sm),
                        gdr: Some(true),
                        nvlinks: self.nvlinks(gpu),
                        c2c: vec![],
                    };
                    devices.push(Device::Pci(Pci {
                        devices: vec![Device::Gpu(facts)],
                        ..pci(self.gpu_bus(gpu), 0x03_0200)
                    }));
                }
                for (i, nic) in
                    self.nics.iter().enumerate().filter(|(_, nic)| (nic.0, nic.1) == (socket, switch))
                {
                    let net = Net {
                        dev: Some(i as u32),
                        speed_mbits: Some(nic.2),
                        gdr: Some(nic.3),
                        ..Net::default()
                    };
                    let bus_id = Recipe::bus(socket, switch, 64 + i);
                    devices.push(Device::Pci(Pci {
                        devices: vec![Device::Nic(Nic { nets: vec![net] })],
                        ..pci(bus_id, 0x02_0700)
                    }));
                }
                Device::Pci(Pci { devices, ..pci(Recipe::bus(socket, switch, 0), 0x06_0400) })
            });
            Cpu {
                numa_id: socket as i32,
                arch: Some(arch.into()),
                vendor: Some(vendor.to_owned()).filter(|vendor| !vendor.is_empty()),
                family_id: Some(family),
                model_id: Some(model),
                devices: switches.collect(),
                ..Cpu::default()
            }
        });
        Inventory { version: 1, cpus: sockets.collect() }
    }
}
