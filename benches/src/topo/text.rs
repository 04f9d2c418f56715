//! Layer: topo.
//! Takes: a machine.
//! Gives: a page for a terminal: the tree of devices, the paths between GPUs and to NICs, the channels that the library connects and
//! those of NCCL's plan.
//! Never: colours or widths that a log file could not hold.

use super::machine::Machine;
use super::models;
use super::runs::Runs;
use oxccl::Rank;
use oxccl::topology::System;
use oxccl::topology::search::{Lane, TopoGraph};
use oxccl::topology::system::{CpuModel, LinkKind, NodeId, NodeKind};
use std::collections::BTreeMap;
use std::fmt::Write;

pub fn page(machine: &Machine, runs: &Runs) -> String {
    let mut out = format!("{}\n{}", headline(machine), hosts(machine));
    write_tree(&mut out, &machine.system);
    write_paths(&mut out, machine);
    let _ = writeln!(out, "\n{}", runs.text());
    out.push_str("Channels of NCCL's plan, with its speeds\n");
    for graph in machine.graphs.all().into_iter().filter(|graph| !graph.lanes.is_empty()) {
        write_graph(&mut out, machine, graph);
    }
    out
}

/// `1 GPU`, `2 GPUs`
pub fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

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

/// Devices below a node of the PCI tree, in order.
pub fn below(system: &System, node: NodeId, up: Option<NodeId>) -> Vec<NodeId> {
    let links = system.node(node).links.iter().map(|id| system.link(*id));
    let down = links.filter(|link| Some(link.to) != up && is_down(system, node, link.kind, link.to));
    let mut down: Vec<NodeId> = down.map(|link| link.to).collect();
    // Links are sorted by bandwidth, but a reader looks for devices by address; those without one come last.
    let is_apart = |id: &NodeId| matches!(system.node(*id).kind, NodeKind::Nic(bus_id) if bus_id.0 == 0);
    down.sort_by_key(|id| (is_apart(id), *id));
    down
}

fn is_down(system: &System, from: NodeId, kind: LinkKind, to: NodeId) -> bool {
    let is_cpu = |id: NodeId| matches!(system.node(id).kind, NodeKind::Cpu(_));
    let is_gpu = matches!(system.node(from).kind, NodeKind::Gpu(_));
    matches!(kind, LinkKind::Pci | LinkKind::Net) && !is_cpu(to) && !is_gpu
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

fn write_tree(out: &mut String, system: &System) {
    for cpu in &system.cpus {
        let sys =
            system.node(*cpu).links.iter().map(|id| system.link(*id)).find(|link| link.kind == LinkKind::Sys);
        let sys = sys.map_or(String::new(), |link| format!(", to other CPUs {} GB/s", rate(link.bw)));
        let _ = writeln!(out, "{}  {}{sys}", name(system, *cpu), model_name(system.cpu_model(*cpu)));
        write_below(out, system, *cpu, None, "");
    }
}

fn write_below(out: &mut String, system: &System, node: NodeId, up: Option<NodeId>, indent: &str) {
    let children = below(system, node, up);
    for (i, child) in children.iter().enumerate() {
        let is_last = i + 1 == children.len();
        let (branch, trunk) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let _ = writeln!(out, "{indent}{branch}{}", describe(system, *child));
        write_below(out, system, *child, Some(node), &format!("{indent}{trunk}"));
    }
}

fn describe(system: &System, node: NodeId) -> String {
    let links = || system.node(node).links.iter().map(|id| system.link(*id));
    let of = |kind: LinkKind| links().filter(move |link| link.kind == kind);
    // What is no PCI device has no speed of one.
    let pci = of(LinkKind::Pci).next_back().filter(|link| link.bw < 1000.0);
    let pci = pci.map_or(String::new(), |link| format!("  PCI {}", rate(link.bw)));
    match &system.node(node).kind {
        NodeKind::Gpu(gpu) => {
            let peers =
                of(LinkKind::NvLink).map(|link| format!("  {} NVL {}", name(system, link.to), rate(link.bw)));
            let c2c = of(LinkKind::C2c).map(|link| format!("  C2C {}", rate(link.bw)));
            let gdr = if gpu.gdr { "  GDR" } else { "" };
            let (peers, c2c) = (peers.collect::<String>(), c2c.collect::<String>());
            let model = gpu.device.map_or(String::new(), |device| models::name(device) + " ");
            format!("{} {} {model}sm {}{gdr}{pci}{c2c}{peers}", name(system, node), gpu.bus_id, gpu.sm)
        }
        NodeKind::Net(net) => {
            let gdr = if net.gdr { "  GDR" } else { "" };
            let is_virtual = links().any(|link| system.bus_id(link.to).0 == 0);
            let kind = if is_virtual { kind_of(&net.name) } else { "" };
            format!("NET {} {}{kind}{gdr}  {} GB/s", net.dev, net.name, rate(net.bw))
        }
        _ => name(system, node) + &pci,
    }
}

fn write_paths(out: &mut String, machine: &Machine) {
    let system = &machine.system;
    for (title, ends) in
        [("Paths between GPUs", &system.gpus), ("Paths from GPUs to the network", &system.nets)]
    {
        if ends.is_empty() || system.gpus.len() > 16 || ends.len() > 16 {
            continue;
        }
        let _ = writeln!(out, "\n{title} (type, GB/s)");
        let width = ends.iter().map(|end| name(system, *end).len()).max().unwrap_or(0).max(9) + 1;
        let head: String = ends.iter().map(|end| format!("{:>width$}", name(system, *end))).collect();
        let _ = writeln!(out, "{:8}{head}", "");
        for gpu in &system.gpus {
            let cell = |end: &NodeId| {
                let route = machine.paths.between(*gpu, *end);
                let text = if gpu == end { "-".into() } else { format!("{} {}", route.kind, rate(route.bw)) };
                format!("{text:>width$}")
            };
            let _ = writeln!(out, "{:8}{}", name(system, *gpu), ends.iter().map(cell).collect::<String>());
        }
    }
}

/// Lanes that are alike, each with its channels, in the order of their first channel.
pub fn distinct(graph: &TopoGraph) -> Vec<(Lane, Vec<usize>)> {
    let mut found: Vec<(Lane, Vec<usize>)> = Vec::new();
    let mut place: BTreeMap<(Vec<Rank>, Option<[u64; 2]>), usize> = BTreeMap::new();
    for (channel, lane) in graph.lanes.iter().enumerate() {
        let at = *place.entry((lane.gpus.clone(), lane.nets)).or_insert_with(|| {
            found.push((lane.clone(), Vec::new()));
            found.len() - 1
        });
        found[at].1.push(channel);
    }
    found
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

fn write_graph(out: &mut String, machine: &Machine, graph: &TopoGraph) {
    let _ = writeln!(
        out,
        "  {}: {} at {}/{} GB/s, {} inside, {} to the network",
        graph.id.name(),
        graph.lanes.len(),
        rate(graph.bw_intra),
        rate(graph.bw_inter),
        graph.type_intra,
        graph.type_inter
    );
    for (lane, channels) in distinct(graph) {
        let gpus: Vec<String> = lane.gpus.iter().map(Rank::to_string).collect();
        let net = |end: usize| {
            let id = lane.nets.map(|nets| nets[end]);
            let net =
                machine.system.nets.iter().map(|net| machine.system.net(*net)).find(|net| Some(net.id) == id);
            net.map_or(String::new(), |net| format!(" [{}]", net.name))
        };
        let _ = writeln!(out, "    {:>7} :{} {}{}", ranges(&channels), net(0), gpus.join(" "), net(1));
    }
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
