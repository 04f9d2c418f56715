//! Selects the network device of a rank: the fast ones, of those the nearest, of those one in turn.
//!
//! For a rank with a GPU, the nearest device shares the longest path through the PCI tree with the GPU, so devices
//! behind the same switch come first; then, and for a rank without GPU, devices on its NUMA node.

use super::{NetError, NetProperties};
use std::path::{Path, PathBuf};

/// Assumed speed of a device that does not report one: 10 Gbit/s, as in NCCL.
pub(crate) const UNKNOWN_MBPS: u32 = 10_000;

/// A rank's locality: its position relative to devices.
#[derive(Clone, Debug, Default)]
pub struct Locality {
    /// The sysfs directory of its GPU, if it has one that is a PCI device.
    pub pci_path: Option<PathBuf>,
    /// The NUMA node of its GPU, or else of its CPU affinity mask, if that lies in one node.
    pub numa_node: Option<u32>,
    /// Number of ranks with the same nearest devices before this one.
    pub turn: u32,
}

/// The facts about a device that count.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Site {
    speed_mbps: u32,
    /// None for virtual devices.
    pci_path: Option<PathBuf>,
    /// None for virtual devices, and on hosts with one node.
    numa_node: Option<u32>,
}

/// Selects among `devices`, at least one, for a rank.
///
/// # Errors
/// The network's error.
pub fn nearest(
    devices: u32,
    properties: impl Fn(u32) -> Result<NetProperties, NetError>,
    rank: &Locality,
) -> Result<u32, NetError> {
    let sites: Vec<Site> =
        (0..devices).map(|device| properties(device).map(Site::of)).collect::<Result<_, _>>()?;
    Ok(pick(&sites, rank))
}

/// A device with a tenth of another's speed serves other purposes, however near it is; two devices of which one has
/// half the speed are together faster than one.
fn pick(sites: &[Site], rank: &Locality) -> u32 {
    let fastest = sites.iter().map(|site| site.speed_mbps).max().unwrap_or(0);
    let fast = || (0..).zip(sites).filter(|(_, site)| site.speed_mbps >= fastest / 2);
    let longest = fast().map(|(_, site)| rank.nearness(site)).max();
    let choice: Vec<u32> =
        fast().filter(|(_, site)| Some(rank.nearness(site)) == longest).map(|(device, _)| device).collect();
    choice.get(rank.turn as usize % choice.len().max(1)).copied().unwrap_or(0)
}

impl Locality {
    /// The locality of the GPU with this sysfs directory, if there is one.
    pub(crate) fn of_gpu(pci_path: Option<PathBuf>, turn: u32) -> Locality {
        let numa_node = pci_path.as_deref().and_then(numa_node);
        Locality { pci_path, numa_node, turn }
    }

    /// Proximity of a device: greater is nearer.
    fn nearness(&self, site: &Site) -> (usize, bool) {
        let paths = self.pci_path.as_deref().zip(site.pci_path.as_deref());
        let shared = paths.map_or(0, |(mine, its)| {
            mine.components().zip(its.components()).take_while(|(a, b)| a == b).count()
        });
        (shared, self.numa_node.is_some() && self.numa_node == site.numa_node)
    }
}

impl Site {
    fn of(device: NetProperties) -> Site {
        let pci_path = device.pci_path.map(PathBuf::from);
        let numa_node = pci_path.as_deref().and_then(numa_node);
        let speed_mbps = if device.speed_mbps == 0 { UNKNOWN_MBPS } else { device.speed_mbps };
        Site { speed_mbps, pci_path, numa_node }
    }
}

/// The content of a device's `numa_node` file: a number, or -1.
fn numa_node(device: &Path) -> Option<u32> {
    std::fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(sites: &[(u32, Option<u32>)], node: Option<u32>) -> Vec<u32> {
        let site =
            |&(speed_mbps, numa_node): &(u32, Option<u32>)| Site { speed_mbps, pci_path: None, numa_node };
        let sites: Vec<Site> = sites.iter().map(site).collect();
        let at = |turn| Locality { numa_node: node, turn, ..Locality::default() };
        (0..4).map(|turn| pick(&sites, &at(turn))).collect()
    }

    fn nic(speed_mbps: u32, path: &str, numa_node: Option<u32>) -> Site {
        let pci_path = Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
        Site { speed_mbps, pci_path, numa_node }
    }

    fn picks_of_gpu(sites: &[Site], gpu: &str, numa_node: Option<u32>) -> [u32; 4] {
        let pci_path = Some(PathBuf::from(gpu)).filter(|path| !path.as_os_str().is_empty());
        [0, 1, 2, 3].map(|turn| pick(sites, &Locality { pci_path: pci_path.clone(), numa_node, turn }))
    }

    #[test]
    fn ranks_take_the_fast_devices_of_their_node_in_turn() {
        let host = [(1_000, Some(0)), (100_000, Some(0)), (100_000, Some(1)), (200_000, Some(1))];
        assert_eq!(picks(&host, Some(0)), [1, 1, 1, 1]);
        assert_eq!(picks(&host, Some(1)), [2, 3, 2, 3]);
        // A node without devices, an unknown node, and a host without NUMA information.
        assert_eq!(picks(&host, Some(2)), [1, 2, 3, 1]);
        assert_eq!(picks(&host, None), [1, 2, 3, 1]);
        assert_eq!(picks(&[(10, None); 3], Some(0)), [0, 1, 2, 0]);
        assert_eq!(picks(&[], None), [0; 4]);
    }

    #[test]
    fn a_gpu_takes_the_nic_behind_its_switch() {
        let gpu = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0";
        let nics = [
            nic(100_000, "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", Some(0)),
            nic(200_000, "/sys/devices/pci0000:40/0000:40:03.0/0000:45:00.0", Some(1)),
            nic(100_000, "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:43:00.0", Some(1)),
        ];
        assert_eq!(picks_of_gpu(&nics, gpu, Some(1)), [2; 4]);
        assert_eq!(picks_of_gpu(&nics[..2], gpu, Some(1)), [1; 4]);
        // A management NIC may be the nearest.
        let slow = [nic(200_000, "/sys/devices/pci0000:00/0000:00:01.0", Some(0)), nic(1_000, gpu, Some(1))];
        assert_eq!(picks_of_gpu(&slow, gpu, Some(1)), [0; 4]);
    }

    #[test]
    fn devices_as_near_as_each_other_are_taken_in_turn() {
        let gpu = "/sys/devices/pci0000:40/0000:40:01.0/0000:42:00.0";
        let nics = [
            nic(0, "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", Some(0)),
            nic(0, "/sys/devices/pci0000:80/0000:80:02.0/0000:02:00.0", Some(1)),
            nic(0, "", None),
        ];
        assert_eq!(picks_of_gpu(&nics, gpu, None), [0, 1, 0, 1]);
        assert_eq!(picks_of_gpu(&nics, gpu, Some(1)), [1; 4], "another root of the same node");
        assert_eq!(picks_of_gpu(&nics, "", None), [0, 1, 2, 0], "nothing is known of the GPU");
        assert_eq!(
            picks_of_gpu(&[nic(0, "", None), nic(0, "", None)], gpu, None),
            [0, 1, 0, 1],
            "virtual ones"
        );
        assert_eq!(picks_of_gpu(&[], gpu, None), [0; 4]);
    }

    #[test]
    fn the_node_of_a_device_is_read_from_its_directory() {
        let folder = tempfile::tempdir().expect("a folder");
        for (text, node) in [("1\n", Some(1)), ("-1\n", None), ("", None)] {
            std::fs::write(folder.path().join("numa_node"), text).expect("a file");
            assert_eq!(numa_node(folder.path()), node);
            assert_eq!(Locality::of_gpu(Some(folder.path().to_owned()), 3).numa_node, node);
        }
        assert_eq!(numa_node(&folder.path().join("missing")), None);
    }
}
