//! Layer: host / topology / system.
//! Takes: an [`Inventory`].
//! Gives: a [`System`].
//! Never: keeps GPUs without a rank: no rank of this communicator uses them.

use super::bandwidth::{LOCAL_BW, NET_SPEED_MBITS, Tables, pci_bw};
use super::classify::{chip_of, gpu_node};
use super::draft::{Draft, check};
use super::flatten::flatten;
use super::{
    CPUS_MAX, CpuModel, CpuNode, GPUS_MAX, HOSTS_MAX, Link, LinkId, LinkKind, NETS_MAX, NetNode, Node,
    NodeId, NodeKind, System, SystemError,
};
use crate::topology::{BusId, Cpu, Device, Gpu, Inventory, Net, NvLink, Pci};

/// Links to add when all nodes exist.
#[derive(Default)]
struct Later<'a> {
    nvlinks: Vec<(usize, usize, &'a Pci, &'a Gpu)>,
    pci: Vec<(usize, u8, BusId, BusId)>,
}

impl System {
    /// Builds the graph of nodes and links.
    ///
    /// # Errors
    /// [`SystemError`]: the inventory does not describe a system.
    pub fn new(inventory: &Inventory, tables: Tables) -> Result<System, SystemError> {
        let mut inventory = inventory.clone();
        inventory.sort_by_rank();
        let mut draft = Draft::default();
        let mut later = Later::default();
        check("NUMA nodes", inventory.cpus.len(), CPUS_MAX)?;
        for cpu in &inventory.cpus {
            draft.add_cpu(cpu, &mut later)?;
        }
        for (gpu, cpu, pci, facts) in &later.nvlinks {
            draft.add_gpu_links(*gpu, *cpu, pci, facts, tables)?;
        }
        for (from, host, from_id, to_id) in &later.pci {
            let to = draft.by_bus_id.get(&(*host, *to_id)).copied();
            let to = to.ok_or(SystemError::Dangling { from: *from_id, to: *to_id })?;
            draft.connect(*from, to, LinkKind::Loc, LOCAL_BW);
        }
        flatten(&mut draft.nodes);
        draft.connect_cpus(tables);
        draft.put_uplinks_last();
        let system = draft.finish()?;
        let is_there = |rank| system.gpus.iter().any(|gpu| system.gpu(*gpu).rank == rank);
        for (pci, gpu) in inventory.gpus() {
            if let Some(rank) = gpu.rank.filter(|rank| !is_there(*rank)) {
                return Err(SystemError::Hidden { bus_id: pci.bus_id, rank });
            }
        }
        Ok(system)
    }
}

impl Draft {
    fn add_cpu<'a>(&mut self, cpu: &'a Cpu, later: &mut Later<'a>) -> Result<(), SystemError> {
        let host = match self.hosts.iter().position(|hash| *hash == cpu.host_hash) {
            Some(host) => host as u8,
            None => {
                self.hosts.push(cpu.host_hash);
                check("hosts", self.hosts.len(), HOSTS_MAX)?;
                (self.hosts.len() - 1) as u8
            }
        };
        let kind = NodeKind::Cpu(CpuNode { numa_id: cpu.numa_id, model: CpuModel::of(cpu) });
        let node = self.add(host, kind)?;
        let mut adapter = None;
        for device in &cpu.devices {
            match device {
                Device::Pci(pci) => self.add_pci(pci, node, node, later)?,
                // All devices that are no PCI devices, such as container bridges, count as one adapter.
                Device::Nic(nic) => {
                    let adapter = match adapter {
                        Some(adapter) => adapter,
                        None => *adapter.insert(self.add_adapter(node, BusId(0))?),
                    };
                    self.add_nets(adapter, BusId(0), &nic.nets)?;
                }
                Device::Gpu(_) | Device::PciLink(_) => {}
            }
        }
        Ok(())
    }

    fn add_adapter(&mut self, cpu: usize, bus_id: BusId) -> Result<usize, SystemError> {
        let adapter = self.add(self.nodes[cpu].host, NodeKind::Nic(bus_id))?;
        self.connect_both(cpu, adapter, LinkKind::Pci, LOCAL_BW);
        Ok(adapter)
    }

    /// Adds a PCI device below `parent`, with the devices below it.
    fn add_pci<'a>(
        &mut self,
        pci: &'a Pci,
        parent: usize,
        cpu: usize,
        later: &mut Later<'a>,
    ) -> Result<(), SystemError> {
        let host = self.nodes[cpu].host;
        let class = pci.class.unwrap_or(0) >> 16;
        self.gpu_class_devices += usize::from(class == 0x03);
        let gpu = pci.devices.iter().find_map(|device| match device {
            Device::Gpu(gpu) => Some(gpu),
            _ => None,
        });
        let nets: Vec<&Net> = nets_of(pci).collect();
        let node = match gpu {
            Some(gpu) => {
                let Some(facts) = gpu_node(pci, gpu) else { return Ok(()) };
                let node = self.add(host, NodeKind::Gpu(facts))?;
                later.nvlinks.push((node, cpu, pci, gpu));
                node
            }
            None if !nets.is_empty() => {
                let bus_id = pci.bus_id.without_function();
                match self.by_bus_id.get(&(host, bus_id)) {
                    Some(adapter) => {
                        let adapter = *adapter;
                        return self.add_nets(adapter, bus_id, nets);
                    }
                    None => {
                        let adapter = self.add(host, NodeKind::Nic(bus_id))?;
                        self.by_bus_id.insert((host, bus_id), adapter);
                        self.add_nets(adapter, bus_id, nets)?;
                        adapter
                    }
                }
            }
            // A device of a skeleton file that detection has not completed: no rank uses it.
            None if class == 0x03 || class == 0x02 => return Ok(()),
            None => {
                let node = self.add(host, NodeKind::Pci(pci.bus_id))?;
                self.nodes[node].chip = chip_of(pci);
                for device in &pci.devices {
                    match device {
                        Device::Pci(below) => self.add_pci(below, node, cpu, later)?,
                        Device::PciLink(target) => later.pci.push((node, host, pci.bus_id, *target)),
                        Device::Gpu(_) | Device::Nic(_) => {}
                    }
                }
                node
            }
        };
        self.by_bus_id.insert((host, pci.bus_id), node);
        let bw = pci_bw(pci.link_speed.as_deref(), pci.link_width);
        self.connect_both(node, parent, LinkKind::Pci, bw);
        Ok(())
    }

    fn add_nets<'a>(
        &mut self,
        adapter: usize,
        bus_id: BusId,
        nets: impl IntoIterator<Item = &'a Net>,
    ) -> Result<(), SystemError> {
        for net in nets {
            let Some(dev) = net.dev else { continue };
            let host = self.nodes[adapter].host;
            let speed = net.speed_mbits.filter(|speed| *speed > 0).unwrap_or(NET_SPEED_MBITS);
            let bw = speed as f32 / 8000.0;
            let facts = NetNode {
                id: u64::from(host) << 56 | u64::from(dev),
                dev,
                name: net.name.clone().unwrap_or_else(|| format!("net{dev}")),
                asic: net.guid.unwrap_or(bus_id.0 << 20 | u64::from(dev)),
                port: net.port.unwrap_or(0),
                bw,
                latency_us: net.latency_us.unwrap_or(0.0),
                gdr: net.gdr.unwrap_or(false),
                coll: net.coll.unwrap_or(false),
            };
            let node = self.add(host, NodeKind::Net(facts))?;
            self.connect_both(adapter, node, LinkKind::Net, bw);
        }
        Ok(())
    }

    fn add_gpu_links(
        &mut self,
        gpu: usize,
        cpu: usize,
        pci: &Pci,
        facts: &Gpu,
        tables: Tables,
    ) -> Result<(), SystemError> {
        let host = self.nodes[gpu].host;
        for link in facts.nvlinks.iter().filter(|link| link.count > 0) {
            let bw = link.count as f32 * tables.nvlink_bw(facts.sm.unwrap_or(0));
            match link.target_class.unwrap_or(0) >> 8 {
                0x0680 if link.target_class != Some(0x06_8001) => {
                    let switch = self.nv_switch(host)?;
                    self.connect_both(gpu, switch, LinkKind::NvLink, bw);
                }
                // A CPU with NVLinks: POWER9.
                0x0680 => self.connect_both(gpu, cpu, LinkKind::NvLink, bw),
                _ => self.add_peer(gpu, host, pci.bus_id, link, bw),
            }
        }
        for link in &facts.c2c {
            let bw = link.bw_mbytes as f32 * link.count as f32 / 1000.0;
            self.connect_both(gpu, cpu, LinkKind::C2c, bw);
        }
        Ok(())
    }

    /// Adds an NVLink to another GPU, which adds the other direction. A missing peer is not in this communicator.
    fn add_peer(&mut self, gpu: usize, host: u8, own: BusId, link: &NvLink, bw: f32) {
        let peer = self.by_bus_id.get(&(host, link.target)).copied();
        if let Some(peer) =
            peer.filter(|peer| link.target != own && matches!(self.nodes[*peer].kind, NodeKind::Gpu(_)))
        {
            self.connect(gpu, peer, LinkKind::NvLink, bw);
        }
    }

    fn nv_switch(&mut self, host: u8) -> Result<usize, SystemError> {
        if let Some(node) = self.nv_switch {
            return Ok(node);
        }
        let node = self.add(host, NodeKind::NvSwitch)?;
        self.nv_switch = Some(node);
        Ok(node)
    }

    fn connect_cpus(&mut self, tables: Tables) {
        let cpus: Vec<(usize, u8, CpuModel)> = (0..self.nodes.len())
            .filter_map(|i| match &self.nodes[i].kind {
                NodeKind::Cpu(cpu) => Some((i, self.nodes[i].host, cpu.model)),
                _ => None,
            })
            .collect();
        for (a, host, model) in &cpus {
            for (b, other_host, _) in &cpus {
                if a != b && host == other_host {
                    self.connect(*a, *b, LinkKind::Sys, tables.cpu_bw(*model));
                }
            }
        }
    }

    /// Moves the link up the PCI tree to the end of each node's links, so that searches try near nodes first.
    fn put_uplinks_last(&mut self) {
        let is_cpu = |draft: &Draft, i: &usize| matches!(draft.nodes[*i].kind, NodeKind::Cpu(_));
        let mut below: Vec<(usize, Option<usize>)> =
            (0..self.nodes.len()).filter(|i| is_cpu(self, i)).map(|i| (i, None)).collect();
        let mut seen = vec![false; self.nodes.len()];
        while let Some((node, up)) = below.pop() {
            if std::mem::replace(&mut seen[node], true) {
                continue;
            }
            let links = &mut self.nodes[node].links;
            if let Some(at) = up.and_then(|up| links.iter().position(|(to, _, _)| *to == up)) {
                let uplink = links.remove(at);
                links.push(uplink);
            }
            let pci = links.iter().filter(|(to, kind, _)| *kind == LinkKind::Pci && Some(*to) != up);
            below.extend(pci.map(|(to, _, _)| (*to, Some(node))));
        }
    }

    /// Numbers the links and finds the reverse of each.
    fn finish(self) -> Result<System, SystemError> {
        let mut place: Vec<Option<NodeId>> = vec![None; self.nodes.len()];
        let mut kept = 0;
        for (i, node) in self.nodes.iter().enumerate() {
            // A switch that was merged into another one has no links left.
            if !(node.links.is_empty() && matches!(node.kind, NodeKind::Pci(_))) {
                place[i] = Some(NodeId(kept));
                kept += 1;
            }
        }
        let mut system = System {
            nodes: Vec::new(),
            links: Vec::new(),
            gpus: Vec::new(),
            nets: Vec::new(),
            cpus: Vec::new(),
            nv_switch: None,
        };
        for (node, id) in self.nodes.iter().zip(&place) {
            let Some(id) = *id else { continue };
            match node.kind {
                NodeKind::Gpu(_) => system.gpus.push(id),
                NodeKind::Net(_) => system.nets.push(id),
                NodeKind::Cpu(_) => system.cpus.push(id),
                NodeKind::NvSwitch => system.nv_switch = Some(id),
                NodeKind::Pci(_) | NodeKind::Nic(_) => {}
            }
            let mut links = Vec::new();
            for (to, kind, bw) in &node.links {
                let Some(to) = place[*to] else { continue };
                links.push(LinkId(system.links.len() as u32));
                system.links.push(Link { from: id, to, kind: *kind, bw: *bw, reverse: LinkId(0) });
            }
            system.nodes.push(Node { host: node.host, kind: node.kind.clone(), links });
        }
        check("GPUs", system.gpus.len(), GPUS_MAX)?;
        check("network devices", system.nets.len(), NETS_MAX)?;
        if system.gpus.is_empty() {
            return Err(SystemError::NoGpus { gpu_class_devices: self.gpu_class_devices });
        }
        system.find_reverse_links()?;
        Ok(system)
    }
}

impl System {
    fn find_reverse_links(&mut self) -> Result<(), SystemError> {
        for i in 0..self.links.len() {
            let link = self.links[i];
            let back = self.node(link.to).links.iter().copied().find(|back| {
                let back = self.link(*back);
                back.to == link.from && back.kind == link.kind
            });
            self.links[i].reverse = back.ok_or_else(|| SystemError::OneWay {
                from: self.bus_id(link.from),
                to: self.bus_id(link.to),
            })?;
        }
        Ok(())
    }

    /// The address of a PCI device; 0 for other nodes.
    pub fn bus_id(&self, id: NodeId) -> BusId {
        match &self.node(id).kind {
            NodeKind::Gpu(gpu) => gpu.bus_id,
            NodeKind::Pci(bus_id) | NodeKind::Nic(bus_id) => *bus_id,
            NodeKind::NvSwitch | NodeKind::Cpu(_) | NodeKind::Net(_) => BusId(0),
        }
    }
}

fn nets_of(pci: &Pci) -> impl Iterator<Item = &Net> {
    pci.devices.iter().flat_map(|device| match device {
        Device::Nic(nic) => nic.nets.as_slice(),
        _ => &[],
    })
}
