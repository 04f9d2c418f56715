//! Layer: host / topology / xml.
//! Takes: text with `<system>` as its root.
//! Gives: an [`Inventory`].
//! Never: fails on unknown elements or attributes: later versions of the format add some, so it skips them.

use super::XmlError;
use super::element::Element;
use crate::topology::{C2c, Cpu, Device, Gpu, Inventory, Net, Nic, NvLink, Pci};
use oxccl_shared::abi::Rank;
use std::collections::HashMap;

/// Ranks and devices have numbers below this.
const NUMBER_MAX: u32 = 1 << 20;
const NUMBER: &str = "a number from 0 to 1048576";

/// Reads a topology.
///
/// # Errors
/// The first invalid line.
pub fn read_topology(text: &str) -> Result<Inventory, XmlError> {
    let root = Element::parse(text, "system")?;
    let version = root.count("version", 1, "version 1")?.unwrap_or(1);
    let mut inventory = Inventory { version, cpus: Vec::new() };
    let mut seen = Seen::default();
    for element in root.children.iter().filter(|child| child.name == "cpu") {
        inventory.cpus.push(cpu(element, &mut seen)?);
    }
    Ok(inventory)
}

/// Identities seen so far, with the line of each.
#[derive(Default)]
struct Seen {
    lines: HashMap<(&'static str, u64, u64), u32>,
    /// The host whose elements are being read.
    host: u64,
}

impl Seen {
    /// Registers an identity. `host` is `None` for identities that are unique in the whole file.
    fn claim(
        &mut self,
        element: &Element,
        attribute: &'static str,
        host: u64,
        id: u64,
    ) -> Result<(), XmlError> {
        match self.lines.insert((attribute, host, id), element.line) {
            None => Ok(()),
            Some(first) => {
                let value = element.get(attribute).unwrap_or_default().to_owned();
                Err(XmlError::Duplicate { line: element.line, attribute, value, first })
            }
        }
    }
}

fn cpu(element: &Element, seen: &mut Seen) -> Result<Cpu, XmlError> {
    let host_hash = element.hex("host_hash", u64::MAX, "a hash such as 0x1f")?;
    let numa_id = element
        .number("numaid", -1..=4095, "a NUMA node's number from -1 to 4095")?
        .ok_or_else(|| element.missing("numaid"))?;
    seen.host = host_hash.unwrap_or(0);
    seen.claim(element, "numaid", seen.host, numa_id as u64)?;
    let affinity = element.text("affinity");
    if affinity
        .as_ref()
        .is_some_and(|mask| !mask.bytes().all(|byte| byte == b',' || byte.is_ascii_hexdigit()))
    {
        return Err(element.wrong("affinity", "hexadecimal digits and commas"));
    }
    Ok(Cpu {
        host_hash,
        numa_id: numa_id as i32,
        affinity,
        arch: element.text("arch"),
        vendor: element.text("vendor"),
        family_id: element.count("familyid", NUMBER_MAX, NUMBER)?,
        model_id: element.count("modelid", NUMBER_MAX, NUMBER)?,
        devices: devices(element, &["pci", "nic"], seen)?,
    })
}

/// The child elements whose names are in `known`.
fn devices(element: &Element, known: &[&str], seen: &mut Seen) -> Result<Vec<Device>, XmlError> {
    let mut devices = Vec::new();
    for child in element.children.iter().filter(|child| known.contains(&child.name.as_str())) {
        devices.push(match child.name.as_str() {
            "pci" => Device::Pci(pci(child, seen)?),
            "gpu" => Device::Gpu(gpu(child, seen)?),
            "nic" => Device::Nic(nic(child, seen)?),
            _ => Device::PciLink(child.bus_id("target")?),
        });
    }
    Ok(devices)
}

fn pci(element: &Element, seen: &mut Seen) -> Result<Pci, XmlError> {
    let bus_id = element.bus_id("busid")?;
    seen.claim(element, "busid", seen.host, bus_id.0)?;
    let id = |attribute| -> Result<Option<u16>, XmlError> {
        let id = element.hex(attribute, 0xffff, "four hexadecimal digits such as 0x10de")?;
        Ok(id.map(|id| id as u16))
    };
    let devices = devices(element, &["pci", "gpu", "nic", "pcilink"], seen)?;
    if devices.iter().filter(|device| matches!(device, Device::Gpu(_))).count() > 1 {
        return Err(element.wrong("busid", "one GPU at an address"));
    }
    Ok(Pci {
        bus_id,
        class: element
            .hex("class", 0xff_ffff, "six hexadecimal digits such as 0x060400")?
            .map(|class| class as u32),
        vendor: id("vendor")?,
        device: id("device")?,
        subsystem_vendor: id("subsystem_vendor")?,
        subsystem_device: id("subsystem_device")?,
        link_speed: element.text("link_speed"),
        link_width: element.count("link_width", 1024, "lanes, from 0 to 1024")?,
        devices,
    })
}

fn gpu(element: &Element, seen: &mut Seen) -> Result<Gpu, XmlError> {
    let rank = element.number("rank", -1..=i64::from(NUMBER_MAX), "a rank, or -1 for none")?;
    let rank = rank.and_then(|rank| u32::try_from(rank).ok()).map(Rank);
    if let Some(rank) = rank {
        seen.claim(element, "rank", 0, u64::from(rank.0))?;
    }
    let mut gpu = Gpu {
        dev: element.count("dev", NUMBER_MAX, NUMBER)?,
        sm: element.count("sm", 999, "a compute capability such as 90")?,
        rank,
        gdr: element.flag("gdr")?,
        ..Gpu::default()
    };
    for child in &element.children {
        match child.name.as_str() {
            "nvlink" => gpu.nvlinks.push(nvlink(child)?),
            "c2c" => gpu.c2c.push(C2c {
                bw_mbytes: required(child, "bw", 100_000_000)?,
                count: required(child, "count", 1024)?,
            }),
            _ => {}
        }
    }
    Ok(gpu)
}

fn nvlink(element: &Element) -> Result<NvLink, XmlError> {
    let target_class = element.hex("tclass", 0xff_ffff, "six hexadecimal digits such as 0x068000")?;
    Ok(NvLink {
        target: element.bus_id("target")?,
        count: required(element, "count", 1024)?,
        target_class: target_class.map(|class| class as u32),
    })
}

fn required(element: &Element, attribute: &'static str, max: u32) -> Result<u32, XmlError> {
    let number = element.count(attribute, max, "a number that is not negative and not this large")?;
    number.ok_or_else(|| element.missing(attribute))
}

fn nic(element: &Element, seen: &mut Seen) -> Result<Nic, XmlError> {
    let mut nic = Nic::default();
    for child in element.children.iter().filter(|child| child.name == "net") {
        let net = net(child)?;
        if let Some(dev) = net.dev {
            seen.claim(child, "dev", seen.host, u64::from(dev))?;
        }
        nic.nets.push(net);
    }
    Ok(nic)
}

fn net(element: &Element) -> Result<Net, XmlError> {
    Ok(Net {
        name: element.text("name"),
        dev: element.count("dev", NUMBER_MAX, NUMBER)?,
        speed_mbits: element
            .number("speed", -1..=100_000_000, "Mb/s, or -1 for unknown")?
            .and_then(|speed| speed.try_into().ok()),
        port: element.count("port", 65_535, "a port from 0 to 65535")?,
        latency_us: element.real("latency")?,
        guid: element.hex("guid", u64::MAX, "a number of 64 bits such as 0x1f")?,
        connections_max: element.count("maxconn", u32::MAX, "connections")?,
        gdr: element.flag("gdr")?,
        coll: element.flag("coll")?,
        rail: element
            .number("rail", -1..=65_535, "a rail, or -1 for none")?
            .and_then(|rail| rail.try_into().ok()),
        plane: element
            .number("plane", -1..=65_535, "a plane, or -1 for none")?
            .and_then(|plane| plane.try_into().ok()),
    })
}
