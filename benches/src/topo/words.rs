//! Layer: topo.
//! Takes: a machine, its nodes and numbers.
//! Gives: what all pages call them.
//! Never: a page.

use super::machine::Machine;
use super::models;
use crate::words::count;
use oxccl::topology::System;
use oxccl::topology::system::{CpuModel, NodeId, NodeKind};

/// `h200x8: 8 GPUs (H200 SXM, sm 90), 1 NUMA node, 0 network devices`
pub fn headline(machine: &Machine) -> String {
    let system = &machine.system;
    let switched = if system.nv_switch.is_some() { ", NVSwitch" } else { "" };
    let gpus = count(system.gpus.len(), "GPU");
    let models = models_of(system);
    format!("{}: {gpus} ({models}sm {}){switched}, {}", machine.name, system.sm_min(), rest_of(system))
}

/// Each different model, with a comma behind; nothing where none is known.
fn models_of(system: &System) -> String {
    let mut models: Vec<u16> = system.gpus.iter().filter_map(|gpu| system.gpu(*gpu).device).collect();
    models.sort_unstable();
    models.dedup();
    models.into_iter().map(|model| models::name(model) + ", ").collect()
}

/// The ranks of each host, where there are several.
pub fn hosts(machine: &Machine) -> String {
    let (gpus, hosts) = (machine.system.gpus.len() as u32, machine.hosts);
    if hosts < 2 {
        return String::new();
    }
    let ranks = |host: u32| format!("host {host}: ranks {} to {}", host * gpus, (host + 1) * gpus - 1);
    let shown = if hosts <= 4 { (0..hosts).collect() } else { vec![0, 1, hosts - 1] };
    let shown: Vec<String> = shown.into_iter().map(ranks).collect();
    format!("{hosts} hosts like this: {}\n", shown.join(if hosts <= 4 { "; " } else { "; ... " }))
}

/// The devices other than GPUs.
fn rest_of(system: &System) -> String {
    let nets = system.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Net(_)));
    format!("{}, {}", count(system.cpus.len(), "NUMA node"), count(nets.count(), "network device"))
}

/// What a node is called.
pub fn name(system: &System, node: NodeId) -> String {
    match &system.node(node).kind {
        NodeKind::Gpu(gpu) => format!("GPU {}", gpu.rank),
        NodeKind::Pci(bus_id) => format!("PCI {bus_id}"),
        NodeKind::NvSwitch => "NVSwitch".into(),
        NodeKind::Cpu(cpu) => {
            let host = system.node(node).host;
            let is_one = system.nodes.iter().all(|node| node.host == host);
            let host = if is_one { String::new() } else { format!("host {host} ") };
            format!("{host}CPU {}", cpu.numa_id.max(0))
        }
        NodeKind::Nic(bus_id) if bus_id.0 == 0 => "without a PCI device".into(),
        NodeKind::Nic(bus_id) => format!("NIC {bus_id}"),
        NodeKind::Net(net) => net.name.clone(),
    }
}

/// What people call a CPU's generation.
pub fn model_name(model: CpuModel) -> &'static str {
    match model {
        CpuModel::IntelBroadwell => "Intel Broadwell",
        CpuModel::IntelSkylake => "Intel Skylake, Cascade or Ice Lake",
        CpuModel::IntelSapphireRapids => "Intel Sapphire Rapids",
        CpuModel::IntelEmeraldRapids => "Intel Emerald Rapids",
        CpuModel::Amd => "AMD",
        CpuModel::Zhaoxin => "Zhaoxin",
        CpuModel::ZhaoxinYongfeng => "Zhaoxin Yongfeng",
        CpuModel::Arm => "ARM",
        CpuModel::Power => "POWER",
        CpuModel::Unknown => "unknown CPU",
    }
}

/// What an interface without a PCI device is, by the names that the usual tools give, with a blank before it.
pub fn kind_of(name: &str) -> &'static str {
    const KINDS: [(&str, &str); 13] = [
        ("veth", " (veth)"),
        ("docker", " (bridge)"),
        ("br-", " (bridge)"),
        ("br0", " (bridge)"),
        ("virbr", " (bridge)"),
        ("cni", " (bridge)"),
        ("lxcbr", " (bridge)"),
        ("tun", " (tunnel)"),
        ("tap", " (tunnel)"),
        ("wg", " (tunnel)"),
        ("bond", " (bond)"),
        ("vxlan", " (overlay)"),
        ("flannel", " (overlay)"),
    ];
    KINDS.iter().find(|(start, _)| name.starts_with(start)).map_or("", |(_, kind)| kind)
}

/// GB/s with as many digits as matter.
pub fn rate(bw: f32) -> String {
    let digits = if bw >= 100.0 || bw.fract() == 0.0 { 0 } else { 1 };
    format!("{bw:.digits$}")
}

/// `0-2,5`
pub fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match parts.last_mut().filter(|(_, end)| *end + 1 == *number) {
            Some((_, end)) => *end = *number,
            None => parts.push((*number, *number)),
        }
    }
    let part = |(start, end): &(usize, usize)| {
        if start == end { format!("{start}") } else { format!("{start}-{end}") }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn interfaces_without_a_card() {
        let kinds = ["docker0", "veth1a2b", "tun0", "eth0", "br-12ab"].map(kind_of);
        assert_eq!(kinds, [" (bridge)", " (veth)", " (tunnel)", "", " (bridge)"]);
    }

    #[test]
    fn rates() {
        assert_eq!([370.8, 48.0, 22.5, 0.12].map(rate), ["371", "48", "22.5", "0.1"]);
    }
}
