//! Layer: host / topology / xml.
//! Takes: text with `<system>` as its root.
//! Gives: an [`Inventory`].
//! Never: fails on unknown elements or attributes: later versions of the format add some, so it skips them.

use super::XmlError;
use super::element::Element;
use crate::topology::{C2c, Cpu, Device, Gpu, Inventory, Net, Nic, NvLink, Pci};
use oxccl_shared::abi::Rank;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

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
    /// Network devices by host and number, with the line of each.
    nets: HashMap<(u64, u32), (u32, Net)>,
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

impl Seen {
    /// Whether a network device was not given before. One without a PCI device is: NCCL 2.28 writes it below the CPU of each rank.
    fn is_new(&mut self, line: u32, net: &Net) -> Result<bool, XmlError> {
        let Some(dev) = net.dev else { return Ok(true) };
        match self.nets.entry((self.host, dev)) {
            Entry::Vacant(place) => {
                place.insert((line, net.clone()));
                Ok(true)
            }
            Entry::Occupied(known) => match difference(&known.get().1, net) {
                None => Ok(false),
                Some((attribute, before, now)) => {
                    let first = known.get().0;
                    Err(XmlError::Contradiction { line, dev, first, attribute, before, now })
                }
            },
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
            "nic" => match nic(child, seen)? {
                Some(nic) => Device::Nic(nic),
                None => continue,
            },
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

/// `None`: all its devices were given before.
fn nic(element: &Element, seen: &mut Seen) -> Result<Option<Nic>, XmlError> {
    let mut nic = Nic::default();
    let mut is_repeated = false;
    for child in element.children.iter().filter(|child| child.name == "net") {
        let net = net(child)?;
        match seen.is_new(child.line, &net)? {
            true => nic.nets.push(net),
            false => is_repeated = true,
        }
    }
    Ok(Some(nic).filter(|nic| !(is_repeated && nic.nets.is_empty())))
}

/// The first attribute that two descriptions of a device both have, with different values: its name and both values.
fn difference(a: &Net, b: &Net) -> Option<(&'static str, String, String)> {
    fn differ<T: PartialEq + ToString>(a: Option<T>, b: Option<T>) -> Option<(String, String)> {
        a.zip(b).filter(|(a, b)| a != b).map(|(a, b)| (a.to_string(), b.to_string()))
    }
    let hex = |number: Option<u64>| number.map(|number| format!("{number:#x}"));
    let flag = |flag: Option<bool>| flag.map(u8::from);
    let differing = [
        ("name", differ(a.name.as_ref(), b.name.as_ref())),
        ("speed", differ(a.speed_mbits, b.speed_mbits)),
        ("port", differ(a.port, b.port)),
        ("latency", differ(a.latency_us, b.latency_us)),
        ("guid", differ(hex(a.guid), hex(b.guid))),
        ("maxconn", differ(a.connections_max, b.connections_max)),
        ("gdr", differ(flag(a.gdr), flag(b.gdr))),
        ("coll", differ(flag(a.coll), flag(b.coll))),
        ("rail", differ(a.rail, b.rail)),
        ("plane", differ(a.plane, b.plane)),
    ];
    differing.into_iter().find_map(|(name, values)| values.map(|(before, now)| (name, before, now)))
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
