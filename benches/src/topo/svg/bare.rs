//! Layer: topo / svg.
//! Takes: an inventory of which no GPU has a rank: a skeleton, or a machine without GPUs.
//! Gives: a picture of what it names: processors, switches, and below them GPUs and NICs by their class.
//! Never: channels or speeds: what is not known is not drawn.

use super::pen::{Anchor, Font, Ink, Pen};
use crate::topo::models;
use crate::topo::processors::{GPU, NIC, class, count_of, gpus_below, processors};
use crate::topo::words::{kind_of, model_name, rate};
use crate::words::count;
use oxccl::topology::system::CpuModel;
use oxccl::topology::{Cpu, Device, Inventory, Net, Pci};

const LEFT: f64 = 60.0;
const CPU_Y: f64 = 128.0;
const CPU_SIZE: [f64; 2] = [230.0, 58.0];
const ROW: f64 = 70.0;
const LEAF: [f64; 2] = [104.0, 62.0];
const GAP: f64 = 16.0;
const CPU_GAP: f64 = 48.0;

/// What stands at the bottom of the picture: title, and a line below it.
struct Leaf {
    ink: Ink,
    title: String,
    lines: Vec<String>,
}

struct Drawing {
    pen: Pen,
    /// Drawn first, below everything.
    wires: Pen,
    leaf_y: f64,
    cursor: f64,
}

/// Draws it.
pub fn draw(name: &str, inventory: &Inventory) -> String {
    let depth = inventory.cpus.iter().map(|cpu| depth(&cpu.devices)).max().unwrap_or(0);
    let leaf_y = CPU_Y + CPU_SIZE[1] + 36.0 + ROW * depth as f64;
    let mut drawing = Drawing { pen: Pen::new(), wires: Pen::new(), leaf_y, cursor: LEFT };
    inventory.cpus.iter().for_each(|cpu| drawing.cpu(cpu));
    let Drawing { pen, wires, leaf_y, cursor } = drawing;
    let mut page = Pen::new();
    let facts = format!(
        "{}, {}, {}; no ranks, so no channels",
        count(gpus_below(inventory), "GPU"),
        count(inventory.cpus.len(), "NUMA node"),
        count(count_of(inventory), "processor")
    );
    page.text([LEFT, 62.0], name, Font::bold(32.0, Ink::Text, Anchor::Start));
    page.text([LEFT, 90.0], &facts, Font::plain(15.0, Ink::Quiet, Anchor::Start));
    page.append(wires);
    page.append(pen);
    page.page((cursor - CPU_GAP).max(LEFT + 560.0) + LEFT, leaf_y + LEAF[1] + 40.0)
}

/// Switches inside each other.
fn depth(devices: &[Device]) -> usize {
    let below = |device: &Device| match device {
        Device::Pci(pci) if is_switch(pci) => 1 + depth(&pci.devices),
        _ => 0,
    };
    devices.iter().map(below).max().unwrap_or(0)
}

fn is_switch(pci: &Pci) -> bool {
    pci.devices.iter().any(|device| matches!(device, Device::Pci(_)))
}

impl Drawing {
    fn cpu(&mut self, cpu: &Cpu) {
        let start = self.cursor;
        let wires = self.below(&cpu.devices, 0);
        let end = (self.cursor - GAP).max(start + CPU_SIZE[0]);
        let x = (start + end) / 2.0;
        self.wires_from(CPU_Y + CPU_SIZE[1], &wires);
        self.pen.bar(x, CPU_Y, [end - start, CPU_SIZE[1]], 12.0, Ink::Cpu);
        let title = format!("CPU {}", cpu.numa_id.max(0));
        self.pen.text([x, CPU_Y + 26.0], &title, Font::bold(17.0, Ink::Light, Anchor::Middle));
        let known = match processors(cpu) {
            0 => String::new(),
            known => format!(", {}", count(known, "processor")),
        };
        let model = format!("{}{known}", model_name(CpuModel::of(cpu)));
        self.pen.text([x, CPU_Y + 45.0], &model, Font::plain(12.0, Ink::Guide, Anchor::Middle));
        self.cursor = end + CPU_GAP;
    }

    fn wires_from(&mut self, y: f64, wires: &[[f64; 2]]) {
        wires.iter().for_each(|[x, to]| self.wires.line([*x, y], [*x, *to], Ink::Quiet, 1.5));
    }

    /// Draws devices; returns where the upper edges of those right below are.
    fn below(&mut self, devices: &[Device], depth: usize) -> Vec<[f64; 2]> {
        let mut wires = Vec::new();
        for device in devices {
            match device {
                Device::Pci(pci) if is_switch(pci) => wires.push(self.switch(pci, depth)),
                Device::Pci(pci) => wires.push(self.leaf(&leaf_of(pci))),
                Device::Nic(nic) => wires.extend(nic.nets.iter().map(|net| self.leaf(&net_of(net)))),
                Device::Gpu(_) | Device::PciLink(_) => {}
            }
        }
        wires
    }

    fn switch(&mut self, pci: &Pci, depth: usize) -> [f64; 2] {
        let (start, y) = (self.cursor, CPU_Y + CPU_SIZE[1] + 28.0 + ROW * depth as f64);
        let wires = self.below(&pci.devices, depth + 1);
        let end = self.cursor - GAP;
        let x = (start + end) / 2.0;
        self.wires_from(y + 30.0, &wires);
        self.pen.bar(x, y, [end - start, 30.0], 8.0, Ink::Switch);
        let label =
            if end - start > 150.0 { format!("PCI switch {}", pci.bus_id) } else { pci.bus_id.to_string() };
        self.pen.text([x, y + 19.5], &label, Font::plain(12.0, Ink::Text, Anchor::Middle));
        [x, y]
    }

    fn leaf(&mut self, leaf: &Leaf) -> [f64; 2] {
        let (x, y) = (self.cursor + LEAF[0] / 2.0, self.leaf_y);
        let text = if leaf.ink == Ink::Gpu { Ink::Light } else { Ink::Text };
        self.pen.bar(x, y, LEAF, 12.0, leaf.ink);
        self.pen.text([x, y + 22.0], &leaf.title, Font::bold(13.0, text, Anchor::Middle));
        for (i, line) in leaf.lines.iter().enumerate() {
            let at = [x, y + 38.0 + 14.0 * i as f64];
            self.pen.text(at, line, Font::plain(10.5, text, Anchor::Middle));
        }
        self.cursor += LEAF[0] + GAP;
        [x, y]
    }
}

fn leaf_of(pci: &Pci) -> Leaf {
    let nets = pci.devices.iter().flat_map(|device| match device {
        Device::Nic(nic) => nic.nets.as_slice(),
        _ => &[],
    });
    let nets: Vec<&str> = nets.filter_map(|net| net.name.as_deref()).collect();
    let (ink, title) = match class(pci) {
        GPU => (Ink::Gpu, pci.device.map_or("GPU".to_owned(), models::name)),
        _ if !nets.is_empty() => (Ink::Nic, nets.join(" ")),
        NIC => (Ink::Nic, "NIC".to_owned()),
        _ => (Ink::Switch, "PCI device".to_owned()),
    };
    Leaf { ink, title: title.chars().take(14).collect(), lines: vec![pci.bus_id.to_string()] }
}

fn net_of(net: &Net) -> Leaf {
    let name = net.name.as_deref().unwrap_or("net");
    let speed = net.speed_mbits.map(|speed| format!("{} GB/s", rate(speed as f32 / 8000.0)));
    let kind = Some(kind_of(name).trim().to_owned()).filter(|kind| !kind.is_empty());
    Leaf {
        ink: Ink::Nic,
        title: name.chars().take(14).collect(),
        lines: kind.into_iter().chain(speed).collect(),
    }
}
