//! Layer: host / topology / detect.
//! Takes: a skeleton, and facts of GPUs and network devices.
//! Gives: the skeleton with each device in its position in the PCI tree, without empty branches.
//! Never: changes what the skeleton states: a cloud provider knows its virtual machines better than the guest does.

use super::facts::{GpuFacts, NetFacts};
use super::sysfs::Sysfs;
use crate::topology::merge::trim;
use crate::topology::{BusId, Cpu, Device, Gpu, Inventory, Net, Nic, Pci};

/// Adds devices to the tree.
pub fn complete(inventory: Inventory, sysfs: &Sysfs, gpus: &[GpuFacts], nets: &[NetFacts]) -> Inventory {
    let mut inventory = put(inventory, sysfs, gpus, nets);
    inventory.cpus.retain(|cpu| !cpu.devices.is_empty());
    inventory
}

/// The same for a host without GPUs, whose ranks are CPU threads. It keeps NUMA nodes without devices.
pub fn processors(mut inventory: Inventory, sysfs: &Sysfs, nets: &[NetFacts]) -> Inventory {
    for node in sysfs.numa_nodes() {
        if !inventory.cpus.iter().any(|cpu| cpu.numa_id == node) {
            inventory.cpus.push(sysfs.cpu(node));
        }
    }
    put(inventory, sysfs, &[], nets)
}

fn put(mut inventory: Inventory, sysfs: &Sysfs, gpus: &[GpuFacts], nets: &[NetFacts]) -> Inventory {
    inventory.cpus.iter_mut().for_each(|cpu| fill_cpu(cpu, sysfs));
    for gpu in gpus {
        add_gpu(place(&mut inventory, sysfs, gpu.bus_id), gpu);
    }
    for (dev, net) in nets.iter().enumerate() {
        if let Some(known) = find_net(&mut inventory, net) {
            fill_net(known, dev as u32, net);
            if let Some(bus_id) = net.bus_id.filter(|bus_id| contains(&mut inventory, *bus_id)) {
                place(&mut inventory, sysfs, bus_id);
            }
            continue;
        }
        match net.bus_id {
            Some(bus_id) => add_net(&mut place(&mut inventory, sysfs, bus_id).devices, dev as u32, net),
            None => add_net(&mut first_cpu(&mut inventory, sysfs).devices, dev as u32, net),
        }
    }
    inventory.cpus.iter_mut().for_each(|cpu| trim(&mut cpu.devices));
    inventory
}

fn fill_cpu(cpu: &mut Cpu, sysfs: &Sysfs) {
    let known = sysfs.cpu(cpu.numa_id);
    let is_bare = cpu.arch.is_none() && cpu.vendor.is_none();
    cpu.affinity = cpu.affinity.take().or(known.affinity);
    if is_bare {
        (cpu.arch, cpu.vendor) = (known.arch, known.vendor);
        (cpu.family_id, cpu.model_id) = (known.family_id, known.model_id);
    }
}

/// A PCI device of the tree, added with the switches above it if it was missing.
fn place<'a>(inventory: &'a mut Inventory, sysfs: &Sysfs, bus_id: BusId) -> &'a mut Pci {
    let chain = sysfs.chain(bus_id);
    // Walk up to the first device that the tree has.
    let known = chain.iter().position(|id| contains(inventory, *id)).unwrap_or(chain.len());
    for at in (0..known).rev() {
        let pci = Device::Pci(Pci::new(chain[at]));
        match chain.get(at + 1).and_then(|parent| find(inventory, *parent)) {
            Some(parent) => parent.devices.push(pci),
            None => cpu_of(inventory, sysfs, bus_id).devices.push(pci),
        }
    }
    for id in &chain {
        if let Some(pci) = find(inventory, *id) {
            fill_pci(pci, sysfs);
        }
    }
    find(inventory, bus_id).expect("a device that was just put there")
}

fn fill_pci(pci: &mut Pci, sysfs: &Sysfs) {
    let known = sysfs.pci(pci.bus_id);
    pci.class = pci.class.or(known.class);
    pci.vendor = pci.vendor.or(known.vendor);
    pci.device = pci.device.or(known.device);
    pci.subsystem_vendor = pci.subsystem_vendor.or(known.subsystem_vendor);
    pci.subsystem_device = pci.subsystem_device.or(known.subsystem_device);
    pci.link_speed = pci.link_speed.take().or(known.link_speed);
    // NCCL refuses a file in which a device has no width. It writes 0 for a device that hides it.
    pci.link_width = pci.link_width.or(known.link_width).or(Some(0));
}

fn contains(inventory: &mut Inventory, bus_id: BusId) -> bool {
    find(inventory, bus_id).is_some()
}

fn find(inventory: &mut Inventory, bus_id: BusId) -> Option<&mut Pci> {
    inventory.cpus.iter_mut().find_map(|cpu| find_below(&mut cpu.devices, bus_id))
}

fn find_below(devices: &mut [Device], bus_id: BusId) -> Option<&mut Pci> {
    devices.iter_mut().find_map(|device| {
        let Device::Pci(pci) = device else { return None };
        if pci.bus_id == bus_id { Some(pci) } else { find_below(&mut pci.devices, bus_id) }
    })
}

/// The device's CPU, added if it was missing.
fn cpu_of<'a>(inventory: &'a mut Inventory, sysfs: &Sysfs, bus_id: BusId) -> &'a mut Cpu {
    let numa_id = sysfs.numa_node(bus_id);
    // Without NUMA information, use the skeleton's first node.
    let known = inventory.cpus.iter().position(|cpu| cpu.numa_id == numa_id);
    let known = known.or((numa_id < 0 && !inventory.cpus.is_empty()).then_some(0));
    let at = known.unwrap_or_else(|| {
        inventory.cpus.push(sysfs.cpu(numa_id));
        inventory.cpus.len() - 1
    });
    &mut inventory.cpus[at]
}

fn first_cpu<'a>(inventory: &'a mut Inventory, sysfs: &Sysfs) -> &'a mut Cpu {
    if inventory.cpus.is_empty() {
        inventory.cpus.push(sysfs.cpu(-1));
    }
    &mut inventory.cpus[0]
}

fn add_gpu(pci: &mut Pci, facts: &GpuFacts) {
    let at = pci.devices.iter().position(|device| matches!(device, Device::Gpu(_))).unwrap_or_else(|| {
        pci.devices.push(Device::Gpu(Gpu::default()));
        pci.devices.len() - 1
    });
    if let Device::Gpu(gpu) = &mut pci.devices[at] {
        gpu.dev = gpu.dev.or(facts.dev);
        gpu.sm = gpu.sm.or(facts.sm);
        gpu.rank = gpu.rank.or(facts.rank);
        gpu.gdr = gpu.gdr.or(facts.gdr);
        if gpu.nvlinks.is_empty() {
            gpu.nvlinks = facts.nvlinks.clone();
        }
        if gpu.c2c.is_empty() {
            gpu.c2c = facts.c2c.clone();
        }
    }
}

fn add_net(devices: &mut Vec<Device>, dev: u32, facts: &NetFacts) {
    let at = devices.iter().position(|device| matches!(device, Device::Nic(_))).unwrap_or_else(|| {
        devices.push(Device::Nic(Nic::default()));
        devices.len() - 1
    });
    let Device::Nic(nic) = &mut devices[at] else { return };
    let mut net = Net { name: Some(facts.name.clone()), ..Net::default() };
    fill_net(&mut net, dev, facts);
    nic.nets.push(net);
}

/// Finds a network device by name, anywhere in the skeleton: NCCL's dumps have interfaces of virtual machines beside
/// their PCI devices.
fn find_net<'a>(inventory: &'a mut Inventory, facts: &NetFacts) -> Option<&'a mut Net> {
    inventory.cpus.iter_mut().find_map(|cpu| find_net_below(&mut cpu.devices, facts))
}

fn find_net_below<'a>(devices: &'a mut [Device], facts: &NetFacts) -> Option<&'a mut Net> {
    let name = Some(facts.name.as_str());
    let is_same = |net: &Net| net.name.as_deref() == name && net.port.unwrap_or(facts.port) == facts.port;
    devices.iter_mut().find_map(|device| match device {
        Device::Pci(pci) => find_net_below(&mut pci.devices, facts),
        Device::Nic(nic) => nic.nets.iter_mut().find(|net| is_same(net)),
        _ => None,
    })
}

fn fill_net(net: &mut Net, dev: u32, facts: &NetFacts) {
    net.dev = net.dev.or(Some(dev));
    net.speed_mbits = net.speed_mbits.or(facts.speed_mbits);
    net.port = net.port.or(Some(facts.port));
    net.guid = net.guid.or(facts.guid);
    net.gdr = net.gdr.or(Some(facts.gdr));
}
