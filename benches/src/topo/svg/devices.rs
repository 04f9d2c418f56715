//! Layer: topo / svg.
//! Takes: a system and its layout.
//! Gives: the devices and the links between them.
//! Never: channels.

use super::layout::{Layout, Spot};
use super::pen::{Anchor, Font, Ink, Pen};
use crate::topo::models;
use crate::topo::words::{model_name, name, rate};
use oxccl::topology::System;
use oxccl::topology::system::{Link, LinkKind, NodeId, NodeKind};

/// Distance from GPUs to NVSwitches, and the switches' height.
const NVSWITCH_DROP: f64 = 74.0;
const NVSWITCH_HEIGHT: f64 = 46.0;

pub fn draw(pen: &mut Pen, system: &System, layout: &Layout) {
    links_between_cpus(pen, system, layout);
    layout.wires.iter().for_each(|(up, down)| wire(pen, system, layout, *up, *down));
    links_into_cpus(pen, system, layout);
    match system.nv_switch {
        Some(switch) => nv_switch(pen, system, layout, switch),
        None => nv_mesh(pen, system, layout),
    }
    layout.cpus.iter().for_each(|spot| cpu(pen, system, spot));
    for spot in &layout.switches {
        pen.bar(spot.x, spot.y, spot.size, 8.0, Ink::Switch);
        let bus_id = system.bus_id(spot.node).to_string();
        let label = if spot.size[0] > 150.0 { format!("PCI switch {bus_id}") } else { bus_id };
        pen.text([spot.x, spot.y + 20.5], &label, Font::plain(12.0, Ink::Text, Anchor::Middle));
    }
    layout.gpus.iter().for_each(|spot| gpu(pen, system, spot));
    layout.nics.iter().for_each(|spot| nic(pen, system, spot));
}

/// How far below the GPUs their links reach.
pub fn bottom(system: &System, layout: &Layout) -> f64 {
    let gpus = layout.leaf_y + super::layout::GPU_SIZE[1];
    if system.nv_switch.is_some() {
        return gpus + NVSWITCH_DROP + NVSWITCH_HEIGHT;
    }
    let deepest = mesh(system, layout).map(|(from, to, _)| drop_of(from, to)).fold(0.0, f64::max);
    gpus + deepest
}

/// How wide a link is drawn: with the square root, so that 6 and 400 GB/s are both lines.
fn stroke(bw: f32) -> f64 {
    (f64::from(bw).sqrt() * 0.5 + 0.8).clamp(1.5, 11.0)
}

fn links_between_cpus(pen: &mut Pen, system: &System, layout: &Layout) {
    let host = |spot: &Spot| system.node(spot.node).host;
    for cpus in layout.cpus.chunk_by(|a, b| host(a) == host(b)) {
        let links = system.node(cpus[0].node).links.iter().map(|id| system.link(*id));
        if let Some(link) = links.into_iter().find(|link| link.kind == LinkKind::Sys) {
            links_of_host(pen, cpus, link);
        }
    }
}

/// The link between two CPUs of a host; between more, each with each, a rail above all.
fn links_of_host(pen: &mut Pen, cpus: &[Spot], link: &Link) {
    let label = format!("SYS {}", rate(link.bw));
    let ink = Ink::Link(LinkKind::Sys);
    match cpus {
        [a, b] => {
            let y = a.y + a.size[1] / 2.0;
            pen.line([a.x, y], [b.x, y], ink, stroke(link.bw));
            let middle = (a.x + a.size[0] / 2.0 + b.x - b.size[0] / 2.0) / 2.0;
            pen.tag(middle, y, &label, ink);
        }
        [first, .., last] => {
            let y = first.y - 34.0;
            pen.line([first.x, y], [last.x, y], ink, stroke(link.bw));
            cpus.iter().for_each(|cpu| pen.line([cpu.x, y], [cpu.x, cpu.y], ink, stroke(link.bw)));
            pen.tag((first.x + last.x) / 2.0, y, &label, ink);
        }
        _ => {}
    }
}

/// A straight link down the PCI tree, at the lower device's middle.
fn wire(pen: &mut Pen, system: &System, layout: &Layout, up: NodeId, down: NodeId) {
    let (Some(above), Some(spot)) = (layout.spot(up), layout.spot(down)) else { return };
    let Some(link) = link_between(system, up, down, LinkKind::Pci) else { return };
    let ink = Ink::Link(LinkKind::Pci);
    let x = spot.x;
    // Only PCI devices have a bandwidth of their own.
    let is_real = link.bw < 1000.0;
    pen.line([x, above.y + above.size[1]], [x, spot.y], ink, if is_real { stroke(link.bw) } else { 1.5 });
    if is_real {
        pen.tag(x, spot.y - 17.0, &format!("PCI {}", rate(link.bw)), Ink::Quiet);
    }
}

fn link_between(system: &System, from: NodeId, to: NodeId, kind: LinkKind) -> Option<&Link> {
    let links = system.node(from).links.iter().map(|id| system.link(*id));
    links.into_iter().find(|link| link.to == to && link.kind == kind)
}

/// Chip-to-chip links, and NVLinks of GPUs to their CPU: beside the PCI link, with the label above that of PCI.
fn links_into_cpus(pen: &mut Pen, system: &System, layout: &Layout) {
    for spot in &layout.gpus {
        for link in system.node(spot.node).links.iter().map(|id| system.link(*id)) {
            let Some(cpu) = layout.cpus.iter().find(|cpu| cpu.node == link.to) else { continue };
            if link.kind == LinkKind::Pci {
                continue;
            }
            let (x, top, ink) = (spot.x + 26.0, cpu.y + cpu.size[1], Ink::Link(link.kind));
            pen.line([x, top], [x, spot.y], ink, stroke(link.bw));
            pen.tag(x, top + 14.0, &format!("{} {}", link.kind.name(), rate(link.bw)), ink);
        }
    }
}

fn nv_switch(pen: &mut Pen, system: &System, layout: &Layout, switch: NodeId) {
    let joined: Vec<(&Spot, &Link)> = layout
        .gpus
        .iter()
        .filter_map(|spot| link_between(system, spot.node, switch, LinkKind::NvLink).map(|link| (spot, link)))
        .collect();
    let (Some((first, _)), Some((last, _))) = (joined.first(), joined.last()) else { return };
    let ink = Ink::Link(LinkKind::NvLink);
    let top = layout.leaf_y + first.size[1];
    for (spot, link) in &joined {
        pen.line([spot.x, top], [spot.x, top + NVSWITCH_DROP], ink, stroke(link.bw));
        pen.tag(spot.x, top + NVSWITCH_DROP / 2.0, &format!("NVL {}", rate(link.bw)), ink);
    }
    let (left, right) =
        (first.x.min(last.x) - first.size[0] / 2.0, first.x.max(last.x) + first.size[0] / 2.0);
    let (x, y) = ((left + right) / 2.0, top + NVSWITCH_DROP);
    pen.bar(x, y, [right - left, NVSWITCH_HEIGHT], 12.0, Ink::NvSwitch);
    pen.text([x, y + 29.0], "NVSwitch", Font::bold(17.0, Ink::Light, Anchor::Middle));
}

/// NVLinks from GPU to GPU, each pair once.
fn mesh<'a>(system: &'a System, layout: &'a Layout) -> impl Iterator<Item = (&'a Spot, &'a Spot, &'a Link)> {
    let links = system.links.iter().filter(|link| link.kind == LinkKind::NvLink && link.from < link.to);
    let gpu = |node: NodeId| layout.gpus.iter().find(|spot| spot.node == node);
    links.filter_map(move |link| Some((gpu(link.from)?, gpu(link.to)?, link)))
}

fn drop_of(from: &Spot, to: &Spot) -> f64 {
    26.0 + 0.2 * (from.x - to.x).abs()
}

fn nv_mesh(pen: &mut Pen, system: &System, layout: &Layout) {
    let ink = Ink::Link(LinkKind::NvLink);
    let arcs: Vec<(&Spot, &Spot, &Link)> = mesh(system, layout).collect();
    for (from, to, link) in &arcs {
        let y = from.y + from.size[1];
        pen.arc([from.x, y], [to.x, y], -drop_of(from, to), ink, stroke(link.bw), false);
    }
    for (from, to, link) in &arcs {
        let y = from.y + from.size[1] + drop_of(from, to);
        pen.tag((from.x + to.x) / 2.0, y, &rate(link.bw), ink);
    }
}

fn cpu(pen: &mut Pen, system: &System, spot: &Spot) {
    pen.bar(spot.x, spot.y, spot.size, 12.0, Ink::Cpu);
    let model = model_name(system.cpu_model(spot.node));
    pen.text([spot.x, spot.y + 26.0], &name(system, spot.node), Font::bold(17.0, Ink::Light, Anchor::Middle));
    pen.text([spot.x, spot.y + 45.0], model, Font::plain(12.0, Ink::Guide, Anchor::Middle));
}

fn gpu(pen: &mut Pen, system: &System, spot: &Spot) {
    let NodeKind::Gpu(gpu) = &system.node(spot.node).kind else { return };
    pen.bar(spot.x, spot.y, spot.size, 12.0, Ink::Gpu);
    pen.text([spot.x, spot.y + 33.0], &gpu.rank.to_string(), Font::bold(26.0, Ink::Light, Anchor::Middle));
    pen.text(
        [spot.x, spot.y + 48.0],
        &gpu.device.map_or(format!("GPU, sm {}", gpu.sm), models::name),
        Font::plain(10.5, Ink::Light, Anchor::Middle),
    );
    pen.text([spot.x, spot.y + 62.0], &gpu.bus_id.to_string(), Font::plain(9.5, Ink::Light, Anchor::Middle));
}

/// Ports that a NIC's box has room for.
const PORTS_MAX: usize = 3;

fn nic(pen: &mut Pen, system: &System, spot: &Spot) {
    pen.bar(spot.x, spot.y, spot.size, 12.0, Ink::Nic);
    let links = system.node(spot.node).links.iter().map(|id| system.link(*id));
    let mut nets: Vec<NodeId> = links.filter(|link| link.kind == LinkKind::Net).map(|link| link.to).collect();
    nets.sort();
    // Bridges, tunnels and what virtual machines have.
    let (title, size) = if system.bus_id(spot.node).0 == 0 { ("no PCI device", 10.0) } else { ("NIC", 13.0) };
    pen.text([spot.x, spot.y + 19.0], title, Font::bold(size, Ink::Text, Anchor::Middle));
    for (i, net) in nets.iter().take(PORTS_MAX).enumerate() {
        let NodeKind::Net(net) = &system.node(*net).kind else { continue };
        let more = if i + 1 == PORTS_MAX && nets.len() > PORTS_MAX { "…" } else { "" };
        let short: String = net.name.chars().take(9).collect();
        let label = format!("{short} {}{more}", rate(net.bw));
        pen.text(
            [spot.x, spot.y + 34.0 + 14.0 * i as f64],
            &label,
            Font::plain(10.5, Ink::Text, Anchor::Middle),
        );
    }
}
