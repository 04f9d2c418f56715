//! Layer: topo.
//! Takes: a machine without GPUs, or a skeleton that does not describe them.
//! Gives: a page for a terminal: NUMA nodes with their processors, and the network devices below them.
//! Never: channels: ranks that are threads need none but the order of NUMA nodes.

use super::models;
use super::words::{kind_of, model_name, rate};
use crate::words::count;
use oxccl::topology::system::CpuModel;
use oxccl::topology::{Cpu, Device, Inventory, Pci};
use std::fmt::Write;

/// `why` there is no GPU goes below.
pub fn page(name: &str, inventory: &Inventory, why: &str) -> String {
    let nets: usize = inventory.cpus.iter().map(|cpu| nets_below(&cpu.devices)).sum();
    let nodes = count(inventory.cpus.len(), "NUMA node");
    let gpus = match gpus_below(inventory) {
        0 => "no GPU".to_owned(),
        gpus => count(gpus, "GPU"),
    };
    let mut out = format!("{name}: {gpus}, {nodes}, {}\n", count(nets, "network device"));
    for cpu in &inventory.cpus {
        let processors = match processors(cpu) {
            0 => String::new(),
            known => format!(", {}", count(known, "processor")),
        };
        let _ = writeln!(out, "CPU {}  {}{processors}", cpu.numa_id.max(0), model_name(CpuModel::of(cpu)));
        write_below(&mut out, &cpu.devices, "", true);
    }
    let _ = writeln!(out, "\n{why}");
    out
}

/// Devices that are GPUs by their class.
pub fn gpus_below(inventory: &Inventory) -> usize {
    inventory.cpus.iter().map(|cpu| of_class(&cpu.devices, GPU)).sum()
}

/// The processors of all nodes, as far as their masks tell.
pub fn count_of(inventory: &Inventory) -> usize {
    inventory.cpus.iter().map(processors).sum()
}

/// The upper byte of PCI classes.
pub const GPU: u32 = 0x03;
pub const NIC: u32 = 0x02;

pub fn class(pci: &Pci) -> u32 {
    pci.class.unwrap_or(0) >> 16
}

fn of_class(devices: &[Device], wanted: u32) -> usize {
    let below = |device: &Device| match device {
        Device::Pci(pci) => usize::from(class(pci) == wanted) + of_class(&pci.devices, wanted),
        Device::Nic(_) | Device::Gpu(_) | Device::PciLink(_) => 0,
    };
    devices.iter().map(below).sum()
}

/// The processors of a node, if its mask is known.
pub fn processors(cpu: &Cpu) -> usize {
    let digits = cpu.affinity.iter().flat_map(|mask| mask.chars()).filter_map(|digit| digit.to_digit(16));
    digits.map(|digit| digit.count_ones() as usize).sum()
}

fn nets_below(devices: &[Device]) -> usize {
    let below = |device: &Device| match device {
        Device::Pci(pci) => nets_below(&pci.devices),
        Device::Nic(nic) => nic.nets.len(),
        Device::Gpu(_) | Device::PciLink(_) => 0,
    };
    devices.iter().map(below).sum()
}

/// `is_bare`: these hang at the CPU itself.
fn write_below(out: &mut String, devices: &[Device], indent: &str, is_bare: bool) {
    let mut lines: Vec<(String, &[Device])> = Vec::new();
    for device in devices {
        match device {
            Device::Pci(pci) => {
                let what = match class(pci) {
                    GPU => format!(
                        "  GPU{}",
                        pci.device.map_or(String::new(), |id| format!(" {}", models::name(id)))
                    ),
                    NIC if pci.devices.is_empty() => "  NIC".to_owned(),
                    _ => String::new(),
                };
                lines.push((format!("PCI {}{what}", pci.bus_id), &pci.devices));
            }
            Device::Nic(nic) => lines.extend(nic.nets.iter().map(|net| {
                let speed = net.speed_mbits.map(|speed| format!("  {} GB/s", rate(speed as f32 / 8000.0)));
                let name = net.name.as_deref().unwrap_or("net");
                let kind = if is_bare { kind_of(name) } else { "" };
                (format!("NET {name}{kind}{}", speed.unwrap_or_default()), &[][..])
            })),
            Device::Gpu(_) | Device::PciLink(_) => {}
        }
    }
    let count = lines.len();
    for (at, (line, below)) in lines.into_iter().enumerate() {
        let (branch, trunk) = if at + 1 == count { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let _ = writeln!(out, "{indent}{branch}{line}");
        write_below(out, below, &format!("{indent}{trunk}"), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl::topology::xml::read_topology;

    #[test]
    fn nodes_and_what_hangs_below_them() {
        let inventory = read_topology(
            r#"<system version="1">
              <cpu numaid="0" affinity="0000000f,00000001" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
                <pci busid="0000:01:00.0"><nic><net name="mlx5_0" dev="0" speed="200000"/><net name="mlx5_1" dev="1"/></nic></pci>
                <nic><net name="bond0" dev="2" speed="10000"/><net name="docker0" dev="3"/></nic>
              </cpu>
              <cpu numaid="1"/>
            </system>"#,
        )
        .unwrap();
        let expected = "\
host: no GPU, 2 NUMA nodes, 4 network devices
CPU 0  AMD, 5 processors
├─ PCI 0000:01:00.0
│  ├─ NET mlx5_0  25 GB/s
│  └─ NET mlx5_1
├─ NET bond0 (bond)  1.2 GB/s
└─ NET docker0 (bridge)
CPU 1  unknown CPU

none
";
        assert_eq!(page("host", &inventory, "none"), expected);
    }
}
