//! Layer: host / topology / xml.
//! Takes: an [`Inventory`].
//! Gives: NCCL's dump format: two blanks a level, attributes in its order, unknown ones left out.
//! Never: fails.

use crate::topology::{Cpu, Device, Gpu, Inventory, Net, Nic, Pci};
use std::borrow::Cow;
use std::fmt::{Display, Write};

/// Writes a topology that [`read_topology`](super::read_topology) reads back.
pub fn write_topology(inventory: &Inventory) -> String {
    let mut out = Writer::default();
    out.open("system").attribute("version", inventory.version);
    inventory.cpus.iter().for_each(|cpu| write_cpu(&mut out, cpu));
    out.close("system");
    out.text
}

fn write_cpu(out: &mut Writer, cpu: &Cpu) {
    out.open("cpu")
        .optional("host_hash", cpu.host_hash.map(|hash| format!("{hash:#x}")))
        .attribute("numaid", cpu.numa_id)
        .optional("affinity", cpu.affinity.as_ref())
        .optional("arch", cpu.arch.as_ref())
        .optional("vendor", cpu.vendor.as_ref())
        .optional("familyid", cpu.family_id)
        .optional("modelid", cpu.model_id);
    write_devices(out, &cpu.devices);
    out.close("cpu");
}

fn write_devices(out: &mut Writer, devices: &[Device]) {
    for device in devices {
        match device {
            Device::Pci(pci) => write_pci(out, pci),
            Device::Gpu(gpu) => write_gpu(out, gpu),
            Device::Nic(nic) => write_nic(out, nic),
            Device::PciLink(target) => {
                out.open("pcilink").attribute("target", target);
                out.close("pcilink");
            }
        }
    }
}

fn write_pci(out: &mut Writer, pci: &Pci) {
    let id = |id: Option<u16>| id.map(|id| format!("{id:#06x}"));
    out.open("pci")
        .attribute("busid", pci.bus_id)
        .optional("class", pci.class.map(|class| format!("{class:#08x}")))
        .optional("vendor", id(pci.vendor))
        .optional("device", id(pci.device))
        .optional("subsystem_vendor", id(pci.subsystem_vendor))
        .optional("subsystem_device", id(pci.subsystem_device))
        // NCCL refuses a device with only one of the two, and writes an unknown speed as an empty string.
        .optional("link_speed", pci.link_speed.as_deref().or(pci.link_width.map(|_| "")))
        .optional("link_width", pci.link_width);
    write_devices(out, &pci.devices);
    out.close("pci");
}

fn write_gpu(out: &mut Writer, gpu: &Gpu) {
    out.open("gpu")
        .optional("dev", gpu.dev)
        .optional("sm", gpu.sm)
        .optional("rank", gpu.rank)
        .optional("gdr", gpu.gdr.map(u8::from));
    for link in &gpu.nvlinks {
        out.open("nvlink")
            .attribute("target", link.target)
            .attribute("count", link.count)
            .optional("tclass", link.target_class.map(|class| format!("{class:#08x}")));
        out.close("nvlink");
    }
    for link in &gpu.c2c {
        out.open("c2c").attribute("bw", link.bw_mbytes).attribute("count", link.count);
        out.close("c2c");
    }
    out.close("gpu");
}

fn write_nic(out: &mut Writer, nic: &Nic) {
    out.open("nic");
    nic.nets.iter().for_each(|net| write_net(out, net));
    out.close("nic");
}

fn write_net(out: &mut Writer, net: &Net) {
    out.open("net")
        .optional("name", net.name.as_ref())
        .optional("dev", net.dev)
        .optional("latency", net.latency_us)
        .optional("speed", net.speed_mbits)
        .optional("port", net.port)
        .optional("guid", net.guid.map(|guid| format!("{guid:#x}")))
        .optional("maxconn", net.connections_max)
        .optional("gdr", net.gdr.map(u8::from))
        .optional("coll", net.coll.map(u8::from))
        .optional("rail", net.rail)
        .optional("plane", net.plane);
    out.close("net");
}

/// Text with open elements. A start tag is finished when it is known whether the element has content.
#[derive(Default)]
pub(super) struct Writer {
    pub text: String,
    depth: usize,
    /// The last start tag still lacks its `>`.
    is_unfinished: bool,
}

impl Writer {
    pub fn open(&mut self, name: &str) -> &mut Writer {
        if self.is_unfinished {
            self.text.push_str(">\n");
        }
        let _ = write!(self.text, "{:indent$}<{name}", "", indent = 2 * self.depth);
        self.depth += 1;
        self.is_unfinished = true;
        self
    }

    pub fn attribute(&mut self, name: &str, value: impl Display) -> &mut Writer {
        let value = value.to_string();
        let escaped: Cow<'_, str> = quick_xml::escape::escape(value.as_str());
        let _ = write!(self.text, " {name}=\"{escaped}\"");
        self
    }

    pub fn optional(&mut self, name: &str, value: Option<impl Display>) -> &mut Writer {
        match value {
            Some(value) => self.attribute(name, value),
            None => self,
        }
    }

    pub fn close(&mut self, name: &str) {
        self.depth -= 1;
        if std::mem::take(&mut self.is_unfinished) {
            self.text.push_str("/>\n");
        } else {
            let _ = writeln!(self.text, "{:indent$}</{name}>", "", indent = 2 * self.depth);
        }
    }
}
