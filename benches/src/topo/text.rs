//! Layer: topo.
//! Takes: a machine.
//! Gives: a page for a terminal: the tree of devices, the paths between GPUs and to NICs, the channels that the library connects and
//! those of NCCL's plan.
//! Never: colours or widths that a log file could not hold.

use super::machine::Machine;
use super::models;
use super::runs::Runs;
use super::words::{headline, hosts, kind_of, model_name, name, ranges, rate};
use oxccl::Rank;
use oxccl::topology::System;
use oxccl::topology::search::{Lane, TopoGraph};
use oxccl::topology::system::{LinkKind, NodeId, NodeKind};
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
