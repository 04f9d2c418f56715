//! Layer: host / topology / detect.
//! Takes: `/sys` and `/proc`, or other directories of the same form.
//! Gives: the PCI tree above a device, its links, NUMA nodes, CPUs, network devices.
//! Never: an error: a missing or malformed file is an unknown fact.

use super::facts::NetFacts;
use crate::topology::{BusId, Cpu, Pci};
use std::path::{Path, PathBuf};

/// The directories in which the kernel shows devices.
#[derive(Clone, Debug)]
pub struct Sysfs {
    sys: PathBuf,
    proc: PathBuf,
}

/// NCCL's name of the architecture that this is compiled for.
const ARCH: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else if cfg!(target_arch = "powerpc64") {
    "ppc64"
} else {
    "x86_64"
};

/// Bytes read of a file: a sysfs file has a page at most, the first entry of `cpuinfo` far less.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Most CPUs: as many as `sched_setaffinity` takes.
const PROCESSORS_MAX: usize = 1024;

impl Sysfs {
    /// This host's directories.
    pub fn live() -> Sysfs {
        Sysfs::at("/")
    }

    /// `sys` and `proc` below `root`.
    pub fn at(root: impl AsRef<Path>) -> Sysfs {
        Sysfs { sys: root.as_ref().join("sys"), proc: root.as_ref().join("proc") }
    }

    /// The device and the switches above it, nearest first. The kernel's path leads from a root port, which belongs
    /// to the CPU, down to the device. A switch in between shows as an upstream and a downstream port; its address is
    /// that of the upstream port.
    pub fn chain(&self, bus_id: BusId) -> Vec<BusId> {
        let path = self.path(bus_id);
        let switches = path.iter().rev().skip(2).step_by(2);
        std::iter::once(bus_id).chain(switches.copied()).collect()
    }

    /// A device's directory, by its position below the root port.
    pub fn place(&self, bus_id: BusId) -> Option<PathBuf> {
        self.device(bus_id).canonicalize().ok()
    }

    /// The CPUs near the device of a directory; none if the kernel does not say.
    pub fn processors_of(&self, directory: &Path) -> Vec<usize> {
        let list = text(&directory.join("local_cpulist")).unwrap_or_default();
        (0..PROCESSORS_MAX).filter(|cpu| is_listed(&list, *cpu)).collect()
    }

    /// All addresses in the device's path, from the root port down to itself.
    fn path(&self, bus_id: BusId) -> Vec<BusId> {
        let Ok(path) = self.device(bus_id).canonicalize() else { return Vec::new() };
        let names = path.components().filter_map(|part| part.as_os_str().to_str());
        names.filter(|name| name.contains('.')).filter_map(|name| name.parse().ok()).collect()
    }

    /// The kernel's facts about a PCI device.
    pub fn pci(&self, bus_id: BusId) -> Pci {
        let device = self.device(bus_id);
        let id = |name| self.hex(&device.join(name)).and_then(|id| u16::try_from(id).ok());
        let (link_speed, link_width) = self.link(&device);
        Pci {
            class: self.hex(&device.join("class")).and_then(|class| u32::try_from(class).ok()),
            vendor: id("vendor"),
            device: id("device"),
            subsystem_vendor: id("subsystem_vendor"),
            subsystem_device: id("subsystem_device"),
            link_speed,
            link_width,
            ..Pci::new(bus_id)
        }
    }

    /// Speed and width of a link: the lower of its two ends.
    fn link(&self, device: &Path) -> (Option<String>, Option<u32>) {
        let port = device.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
        let ends: Vec<PathBuf> = std::iter::once(device.to_owned()).chain(port).collect();
        let rate =
            |text: &String| text.split_whitespace().next().and_then(|number| number.parse::<f32>().ok());
        let speeds = ends.iter().filter_map(|end| text(&end.join("max_link_speed")));
        let speed = speeds
            .filter(|text| rate(text).is_some())
            .min_by(|a, b| rate(a).partial_cmp(&rate(b)).unwrap_or(std::cmp::Ordering::Equal));
        let widths = ends.iter().filter_map(|end| text(&end.join("max_link_width"))?.parse::<u32>().ok());
        // The kernel shows 255 where a device does not report its width.
        (speed, widths.filter(|lanes| (1..255).contains(lanes)).min())
    }

    /// The NUMA node of a device; -1 if the host has none or does not say.
    pub fn numa_node(&self, bus_id: BusId) -> i32 {
        let node = text(&self.device(bus_id).join("numa_node"));
        node.and_then(|node| node.parse().ok()).filter(|node| (0..4096).contains(node)).unwrap_or(-1)
    }

    /// The NUMA node that contains all CPUs of a mask.
    pub fn numa_node_of(&self, processors: &[u64]) -> Option<u32> {
        let nodes = self.sys.join("devices/system/node");
        let number = |name: &String| name.strip_prefix("node")?.parse::<u32>().ok();
        let has_all = |node: &u32| {
            let list = text(&nodes.join(format!("node{node}/cpulist"))).unwrap_or_default();
            let numbers =
                (0..64 * processors.len()).filter(|cpu| processors[cpu / 64] >> (cpu % 64) & 1 == 1);
            let mut numbers = numbers.peekable();
            numbers.peek().is_some() && numbers.all(|cpu| is_listed(&list, cpu))
        };
        names(&nodes).iter().filter_map(number).find(has_all)
    }

    /// The host's NUMA nodes; -1 alone if it has none or does not say.
    pub fn numa_nodes(&self) -> Vec<i32> {
        let nodes = names(&self.sys.join("devices/system/node"));
        let nodes: Vec<i32> = nodes
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .filter(|node| (0..4096).contains(node))
            .collect();
        if nodes.is_empty() { vec![-1] } else { nodes }
    }

    /// A NUMA node, without devices.
    pub fn cpu(&self, numa_id: i32) -> Cpu {
        let map = self.sys.join(format!("devices/system/node/node{numa_id}/cpumap"));
        let info = text(&self.proc.join("cpuinfo")).unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        Cpu {
            numa_id,
            affinity: text(&map).filter(|_| numa_id >= 0),
            arch: Some(ARCH.to_owned()),
            vendor: field("vendor_id"),
            family_id: field("cpu family").and_then(|family| family.parse().ok()),
            model_id: field("model").and_then(|model| model.parse().ok()),
            ..Cpu::default()
        }
    }

    /// RDMA devices, or else network interfaces.
    pub fn nets(&self) -> Vec<NetFacts> {
        let nets = self.rdma_devices();
        if nets.is_empty() { self.interfaces() } else { nets }
    }

    /// InfiniBand and RoCE devices, a device for each port.
    pub fn rdma_devices(&self) -> Vec<NetFacts> {
        let class = self.sys.join("class/infiniband");
        let gdr = self.sys.join("module/nvidia_peermem").exists();
        let mut found = Vec::new();
        for name in names(&class) {
            let device = class.join(&name);
            let guid = text(&device.join("node_guid"));
            let guid = guid.and_then(|guid| u64::from_str_radix(&guid.replace(':', ""), 16).ok());
            for port in names(&device.join("ports")) {
                let Ok(number) = port.parse() else { continue };
                // "200 Gb/sec (4X HDR)"
                let rate = text(&device.join("ports").join(&port).join("rate"));
                let rate = rate.and_then(|rate| rate.split_whitespace().next()?.parse::<f32>().ok());
                found.push(NetFacts {
                    name: name.clone(),
                    bus_id: bus_id_of(&device.join("device")),
                    speed_mbits: rate.map(|rate| (rate * 1000.0) as u32),
                    port: number,
                    guid,
                    gdr,
                });
            }
        }
        found
    }

    /// Network interfaces that are up, without loopback and container interfaces.
    pub fn interfaces(&self) -> Vec<NetFacts> {
        let class = self.sys.join("class/net");
        let is_up =
            |name: &String| text(&class.join(name).join("operstate")).is_some_and(|state| state == "up");
        let is_ours = |name: &String| name != "lo" && !name.starts_with("docker") && is_up(name);
        let speed = |name: &str| {
            text(&class.join(name).join("speed"))?.parse::<u32>().ok().filter(|speed| *speed > 0)
        };
        let fact = |name: String| NetFacts {
            bus_id: bus_id_of(&class.join(&name).join("device")),
            speed_mbits: speed(&name),
            port: 0,
            guid: None,
            gdr: false,
            name,
        };
        names(&class).into_iter().filter(is_ours).map(fact).collect()
    }

    fn device(&self, bus_id: BusId) -> PathBuf {
        self.sys.join("bus/pci/devices").join(bus_id.to_string())
    }

    fn hex(&self, path: &Path) -> Option<u64> {
        u64::from_str_radix(text(path)?.trim_start_matches("0x"), 16).ok()
    }
}

/// Whether a list such as `0-3,8` contains a number.
fn is_listed(list: &str, number: usize) -> bool {
    list.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let ends = first.parse::<usize>().ok().zip(last.parse::<usize>().ok());
        ends.is_some_and(|(first, last)| (first..=last).contains(&number))
    })
}

/// A file's text without the line's end.
fn text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A directory's entries in natural order: `mlx5_2` before `mlx5_10`.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by_key(|name| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        (stem.to_owned(), name[stem.len()..].parse::<u64>().unwrap_or(0))
    });
    names
}

/// The PCI device that a link of another class leads to. Virtual functions and similar devices are below it.
fn bus_id_of(link: &Path) -> Option<BusId> {
    let path = link.canonicalize().ok()?;
    let names = path.components().filter_map(|part| part.as_os_str().to_str());
    names.filter(|name| name.contains('.')).filter_map(|name| name.parse().ok()).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        let has = |list, number| is_listed(list, number);
        assert!(has("0-3,8,10-11", 0) && has("0-3,8,10-11", 8) && has("0-3,8,10-11", 11));
        assert!(!has("0-3,8,10-11", 4) && !has("0-3,8,10-11", 12) && !has("", 0) && !has("x-3", 2));
    }

    #[test]
    fn processors_are_on_the_node_that_has_them_all() {
        let root = tempfile::tempdir().unwrap();
        for (node, list) in [(0, "0-1,64-65\n"), (1, "2-3\n")] {
            let directory = root.path().join(format!("sys/devices/system/node/node{node}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("cpulist"), list).unwrap();
        }
        let sysfs = Sysfs::at(root.path());
        assert_eq!(sysfs.numa_node_of(&[0b11, 0b10]), Some(0));
        assert_eq!(sysfs.numa_node_of(&[0b1000, 0]), Some(1));
        assert_eq!(sysfs.numa_node_of(&[0b110, 0]), None);
        assert_eq!(sysfs.numa_node_of(&[0, 0]), None);
    }
}
