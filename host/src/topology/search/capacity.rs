//! Layer: host / topology / search.
//! Takes: routes and speeds.
//! Gives: [`Capacity`]: the bandwidth left on each link while channels are tried.
//! Never: a negative bandwidth.

use crate::topology::PathKind;
use crate::topology::paths::Route;
use crate::topology::system::{CpuModel, LinkId, LinkKind, NodeId, NodeKind, System, through_intel};

/// GB/s left.
pub(super) struct Capacity<'a> {
    system: &'a System,
    links: Vec<f32>,
    /// GB/s left on each network device, by index.
    nets: Vec<f32>,
    habits: Vec<Habit>,
}

/// Traffic that data on a link causes elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    Plain,
    /// It ends in an Intel CPU, which splits what GPUs send each other.
    ToIntel,
    /// It ends in a GPU before Ampere, which answers a NIC's writes with an eighth as much.
    ToOldGpu,
    /// An NVLink into a POWER CPU carries as much back.
    ToPower,
}

impl<'a> Capacity<'a> {
    pub fn new(system: &'a System) -> Capacity<'a> {
        let habit = |link: &crate::topology::system::Link| match &system.node(link.to).kind {
            NodeKind::Cpu(cpu) if cpu.model.is_intel() => Habit::ToIntel,
            NodeKind::Cpu(cpu) if cpu.model == CpuModel::Power && link.kind == LinkKind::NvLink => {
                Habit::ToPower
            }
            NodeKind::Gpu(gpu) if gpu.sm < 80 => Habit::ToOldGpu,
            _ => Habit::Plain,
        };
        Capacity {
            system,
            links: system.links.iter().map(|link| link.bw).collect(),
            nets: system.nets.iter().map(|net| system.net(*net).bw).collect(),
            habits: system.links.iter().map(habit).collect(),
        }
    }

    /// Takes `bw` from each link of a route. `false`: one link has less, and nothing was taken.
    pub fn take(&mut self, from: NodeId, route: &Route, bw: f32) -> bool {
        match self.walk(from, route, route.links.len(), bw) {
            done if done == route.links.len() => true,
            done => {
                self.walk(from, route, done, -bw);
                false
            }
        }
    }

    /// Undoes [`Self::take`].
    pub fn give(&mut self, from: NodeId, route: &Route, bw: f32) {
        self.walk(from, route, route.links.len(), -bw);
    }

    /// Takes from up to `count` links; returns how many had enough.
    fn walk(&mut self, from: NodeId, route: &Route, count: usize, bw: f32) -> usize {
        let is_from_gpu = matches!(self.system.node(from).kind, NodeKind::Gpu(_));
        let is_split = is_from_gpu
            && route.kind == PathKind::Phb
            && route.links.iter().any(|link| self.habits[link.0 as usize] == Habit::ToIntel);
        for (done, id) in route.links[..count].iter().enumerate() {
            let link = self.system.link(*id);
            let forth = if is_split && link.kind == LinkKind::Pci { through_intel(bw) } else { bw };
            let back = match self.habits[id.0 as usize] {
                Habit::ToOldGpu if !is_from_gpu => forth / 8.0,
                Habit::ToPower => forth,
                _ => 0.0,
            };
            let (there, reverse) = (id.0 as usize, link.reverse.0 as usize);
            if self.links[there] < forth || (back != 0.0 && self.links[reverse] < back) {
                return done;
            }
            self.links[there] = rounded(self.links[there] - forth);
            if back != 0.0 {
                self.links[reverse] = rounded(self.links[reverse] - back);
            }
        }
        count
    }

    /// Takes from a network device and those that share its port. `false`: one has less. `ports` has, for each
    /// device, the first device on its port.
    pub fn take_net(&mut self, net: usize, ports: &[usize], bw: f32) -> bool {
        let has_enough = self.nets[net] >= bw;
        if has_enough {
            self.give_net(net, ports, -bw);
        }
        has_enough
    }

    /// Undoes [`Self::take_net`].
    pub fn give_net(&mut self, net: usize, ports: &[usize], bw: f32) {
        let shares = ports.iter().map(|port| *port == ports[net]);
        self.nets.iter_mut().zip(shares).filter(|(_, shares)| *shares).for_each(|(left, _)| *left += bw);
    }

    /// GB/s left on a GPU's PCI link in both directions.
    pub fn pci_left(&self, gpu: NodeId) -> f32 {
        let is_pci = |id: &&LinkId| self.system.link(**id).kind == LinkKind::Pci;
        match self.system.node(gpu).links.iter().find(is_pci) {
            Some(id) => self.links[id.0 as usize].min(self.links[self.system.link(*id).reverse.0 as usize]),
            None => -1.0,
        }
    }
}

/// Rounds to thousandths: otherwise rounding errors of taking and giving back would decide comparisons.
fn rounded(bw: f32) -> f32 {
    let thousandths = bw * 1000.0;
    // Most values are whole and need no library call.
    let whole = thousandths as i32 as f32;
    (if whole == thousandths { whole } else { thousandths.round() }) / 1000.0
}
