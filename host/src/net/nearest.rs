//! Which of a network's devices a rank on processors uses: the fast ones, of those the ones on its NUMA node, of those each in turn.

use super::{Net, NetError, NetProperties};
use std::path::Path;

/// Where a rank runs, as far as devices are nearer to it or farther.
#[derive(Clone, Copy, Debug)]
pub struct Whereabouts {
    /// The NUMA node of its processors, if it keeps to one.
    pub numa_node: Option<u32>,
    /// How many ranks of its host and node come before it.
    pub turn: u32,
}

/// What counts of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Site {
    speed_mbps: u32,
    /// None for devices that are on no bus, and where the host has one node only.
    numa_node: Option<u32>,
}

/// The device of `net`, which has one, for a rank there.
///
/// # Errors
/// What the network says of its devices.
pub fn nearest(net: &dyn Net, rank: Whereabouts) -> Result<u32, NetError> {
    let sites: Vec<Site> =
        (0..net.devices()).map(|device| net.properties(device).map(Site::of)).collect::<Result<_, _>>()?;
    Ok(pick(&sites, rank))
}

/// A device of a tenth of another's speed is there for other things; where it is half, both together are faster than one.
fn pick(sites: &[Site], rank: Whereabouts) -> u32 {
    let fastest = sites.iter().map(|site| site.speed_mbps).max().unwrap_or(0);
    let is_fast = |site: &Site| site.speed_mbps >= fastest / 2;
    let is_near = |site: &Site| is_fast(site) && rank.numa_node.is_some() && site.numa_node == rank.numa_node;
    let those = |wanted: &dyn Fn(&Site) -> bool| -> Vec<u32> {
        (0..).zip(sites).filter(|(_, site)| wanted(site)).map(|(device, _)| device).collect()
    };
    let near = those(&is_near);
    let choice = if near.is_empty() { those(&is_fast) } else { near };
    choice.get(rank.turn as usize % choice.len().max(1)).copied().unwrap_or(0)
}

impl Site {
    fn of(device: NetProperties) -> Site {
        let node = device.pci_path.and_then(|path| numa_node(Path::new(&path)));
        Site { speed_mbps: device.speed_mbps, numa_node: node }
    }
}

/// As sysfs has it in a device's directory: a number, or -1.
fn numa_node(device: &Path) -> Option<u32> {
    std::fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(sites: &[(u32, Option<u32>)], node: Option<u32>) -> Vec<u32> {
        let sites: Vec<Site> =
            sites.iter().map(|&(speed_mbps, numa_node)| Site { speed_mbps, numa_node }).collect();
        (0..4).map(|turn| pick(&sites, Whereabouts { numa_node: node, turn })).collect()
    }

    #[test]
    fn ranks_take_the_fast_devices_of_their_node_in_turn() {
        let host = [(1_000, Some(0)), (100_000, Some(0)), (100_000, Some(1)), (200_000, Some(1))];
        assert_eq!(picks(&host, Some(0)), [1, 1, 1, 1]);
        assert_eq!(picks(&host, Some(1)), [2, 3, 2, 3]);
        // Of a node without devices, of no node, and a host that says nothing.
        assert_eq!(picks(&host, Some(2)), [1, 2, 3, 1]);
        assert_eq!(picks(&host, None), [1, 2, 3, 1]);
        assert_eq!(picks(&[(10, None); 3], Some(0)), [0, 1, 2, 0]);
        assert_eq!(picks(&[], None), [0; 4]);
    }

    #[test]
    fn the_node_of_a_device_is_read_from_its_directory() {
        let folder = tempfile::tempdir().expect("a folder");
        for (text, node) in [("1\n", Some(1)), ("-1\n", None), ("", None)] {
            std::fs::write(folder.path().join("numa_node"), text).expect("a file");
            assert_eq!(numa_node(folder.path()), node);
        }
        assert_eq!(numa_node(&folder.path().join("missing")), None);
    }
}
