//! Layer: topo / svg.
//! Takes: a system.
//! Gives: [`Layout`]: where each device stands. GPUs and NICs stand in one row in the order of the PCI tree; what is above
//! them is as wide as they are together, so that links are straight.
//! Never: draws.

use crate::topo::text::below;
use oxccl::topology::System;
use oxccl::topology::system::{LinkKind, NodeId, NodeKind};

/// A device's place: the middle of its upper edge, and its size.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    pub node: NodeId,
    pub x: f64,
    pub y: f64,
    pub size: [f64; 2],
}

/// The place of every device.
pub struct Layout {
    pub left: f64,
    pub right: f64,
    pub width: f64,
    /// Upper edge of GPUs and NICs.
    pub leaf_y: f64,
    pub cpus: Vec<Spot>,
    pub switches: Vec<Spot>,
    /// In the system's order.
    pub gpus: Vec<Spot>,
    pub nics: Vec<Spot>,
    /// Links down the PCI tree: above, below.
    pub wires: Vec<(NodeId, NodeId)>,
    /// Kinds of links that are drawn.
    pub kinds: Vec<LinkKind>,
}

/// Room for the labels of channels.
const LEFT: f64 = 170.0;
const RIGHT: f64 = 70.0;
const CPU_Y: f64 = 146.0;
pub const CPU_HEIGHT: f64 = 58.0;
const SWITCH_HEIGHT: f64 = 32.0;
const ROW: f64 = 88.0;
pub const GPU_SIZE: [f64; 2] = [84.0, 72.0];
const NIC_SIZE: [f64; 2] = [98.0, 72.0];
const GAP: f64 = 16.0;
const CPU_GAP: f64 = 64.0;
const CPU_WIDTH_MIN: f64 = 230.0;

struct Builder<'a> {
    system: &'a System,
    layout: Layout,
    cursor: f64,
}

impl Layout {
    pub fn new(system: &System) -> Layout {
        let depth = system.cpus.iter().map(|cpu| depth_below(system, *cpu, None)).max().unwrap_or(0);
        let layout = Layout {
            left: LEFT,
            right: LEFT,
            width: 0.0,
            leaf_y: CPU_Y + CPU_HEIGHT + ROW * depth as f64 + 64.0,
            cpus: Vec::new(),
            switches: Vec::new(),
            gpus: Vec::new(),
            nics: Vec::new(),
            wires: Vec::new(),
            kinds: kinds(system),
        };
        let mut builder = Builder { system, layout, cursor: LEFT };
        for cpu in &system.cpus {
            builder.add_cpu(*cpu);
        }
        let mut layout = builder.layout;
        layout.right = (builder.cursor - CPU_GAP).max(LEFT + 620.0);
        layout.width = layout.right + RIGHT;
        layout.gpus.sort_by_key(|spot| system.gpus.iter().position(|gpu| *gpu == spot.node));
        layout
    }

    /// Where a device stands, if it is shown.
    pub fn spot(&self, node: NodeId) -> Option<&Spot> {
        let all = self.cpus.iter().chain(&self.switches).chain(&self.gpus).chain(&self.nics);
        all.into_iter().find(|spot| spot.node == node)
    }
}

impl Builder<'_> {
    fn add_cpu(&mut self, cpu: NodeId) {
        let start = self.cursor;
        for child in below(self.system, cpu, None) {
            self.add_below(child, cpu, 0);
        }
        let end = (self.cursor - GAP).max(start + CPU_WIDTH_MIN);
        let spot = Spot { node: cpu, x: (start + end) / 2.0, y: CPU_Y, size: [end - start, CPU_HEIGHT] };
        self.layout.cpus.push(spot);
        self.cursor = end + CPU_GAP;
    }

    fn add_below(&mut self, node: NodeId, up: NodeId, depth: usize) {
        self.layout.wires.push((up, node));
        let y = self.layout.leaf_y;
        match self.system.node(node).kind {
            NodeKind::Gpu(_) => {
                let spot = self.take(node, y, GPU_SIZE);
                self.layout.gpus.push(spot);
            }
            NodeKind::Nic(_) => {
                let spot = self.take(node, y, NIC_SIZE);
                self.layout.nics.push(spot);
            }
            _ => {
                let start = self.cursor;
                for child in below(self.system, node, Some(up)) {
                    self.add_below(child, node, depth + 1);
                }
                if self.cursor == start {
                    self.cursor += GPU_SIZE[0] + GAP;
                }
                let end = self.cursor - GAP;
                let y = CPU_Y + CPU_HEIGHT + 52.0 + ROW * depth as f64;
                let size = [end - start, SWITCH_HEIGHT];
                self.layout.switches.push(Spot { node, x: (start + end) / 2.0, y, size });
                self.cursor += GAP;
            }
        }
    }

    fn take(&mut self, node: NodeId, y: f64, size: [f64; 2]) -> Spot {
        let spot = Spot { node, x: self.cursor + size[0] / 2.0, y, size };
        self.cursor += size[0] + GAP;
        spot
    }
}

/// Switches inside each other.
fn depth_below(system: &System, node: NodeId, up: Option<NodeId>) -> usize {
    let switches = below(system, node, up);
    let switches = switches.into_iter().filter(|child| matches!(system.node(*child).kind, NodeKind::Pci(_)));
    switches.map(|child| 1 + depth_below(system, child, Some(node))).max().unwrap_or(0)
}

fn kinds(system: &System) -> Vec<LinkKind> {
    let mut kinds: Vec<LinkKind> = system.links.iter().map(|link| link.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds.retain(|kind| !matches!(kind, LinkKind::Loc | LinkKind::Net));
    kinds
}
