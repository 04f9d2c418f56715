//! Which device of a network is near a GPU, and which processors are near both.

use crate::topology::BusId;
use crate::topology::detect::Sysfs;
use std::path::{Path, PathBuf};

/// The number of the device whose place in the tree of PCI devices is nearest to the GPU's: the longest common path. Of devices as
/// near as each other, the ranks of a host take one after the other.
pub(super) fn nearest(gpu: Option<&Path>, devices: &[Option<PathBuf>], local_rank: u32) -> u32 {
    let shared = |device: &Option<PathBuf>| {
        let parts = gpu.zip(device.as_deref()).map(|(gpu, device)| gpu.components().zip(device.components()));
        parts.map_or(0, |parts| parts.take_while(|(a, b)| a == b).count())
    };
    let longest = devices.iter().map(shared).max().unwrap_or(0);
    let best: Vec<u32> =
        (0..).zip(devices).filter(|(_, device)| shared(device) == longest).map(|(i, _)| i).collect();
    best.get(local_rank as usize % best.len().max(1)).copied().unwrap_or(0)
}

/// The processors near a device that this process may use; near the GPU where the device is no PCI device. None if nobody knows.
pub(super) fn processors(sysfs: &Sysfs, device: Option<&Path>, gpu: BusId, allowed: &[u64]) -> Vec<usize> {
    let gpu = sysfs.place(gpu);
    let near = device.or(gpu.as_deref()).map(|place| sysfs.processors_of(place)).unwrap_or_default();
    let is_allowed = |cpu: &usize| allowed.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1);
    near.into_iter().filter(is_allowed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(texts: &[&str]) -> Vec<Option<PathBuf>> {
        texts.iter().map(|text| Some(PathBuf::from(text)).filter(|_| !text.is_empty())).collect()
    }

    #[test]
    fn the_nic_behind_the_same_switch_is_taken() {
        let gpu = Path::new("/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0");
        let nics = paths(&[
            "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
            "/sys/devices/pci0000:40/0000:40:03.0/0000:45:00.0",
            "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:43:00.0",
        ]);
        assert_eq!(nearest(Some(gpu), &nics, 0), 2);
        assert_eq!(nearest(Some(gpu), &nics, 5), 2);
        assert_eq!(nearest(Some(gpu), &nics[..2], 0), 1);
    }

    #[test]
    fn devices_as_near_as_each_other_are_taken_in_turn() {
        let gpu = Path::new("/sys/devices/pci0000:40/0000:40:01.0/0000:42:00.0");
        let nics = paths(&[
            "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
            "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0",
            "",
        ]);
        let taken = |gpu, devices: &[_]| [0, 1, 2, 3].map(|local_rank| nearest(gpu, devices, local_rank));
        assert_eq!(taken(Some(gpu), &nics), [0, 1, 0, 1]);
        assert_eq!(taken(None, &nics), [0, 1, 2, 0], "nothing is known of the GPU");
        assert_eq!(taken(Some(gpu), &paths(&["", ""])), [0, 1, 0, 1], "virtual devices");
        assert_eq!(taken(Some(gpu), &[]), [0; 4]);
    }

    #[test]
    fn processors_are_those_near_the_nic_that_may_be_used() {
        let root = tempfile::tempdir().unwrap();
        let nic = root.path().join("nic");
        std::fs::create_dir(&nic).unwrap();
        std::fs::write(nic.join("local_cpulist"), "0-3,64-66\n").unwrap();
        let gpu = root.path().join("sys/bus/pci/devices/0000:42:00.0");
        std::fs::create_dir_all(&gpu).unwrap();
        std::fs::write(gpu.join("local_cpulist"), "8-9\n").unwrap();
        let sysfs = Sysfs::at(root.path());
        let near = |device, allowed: &[u64]| processors(&sysfs, device, BusId::new(0, 0x42, 0), allowed);
        assert_eq!(near(Some(&*nic), &[0b1010, 0b10]), [1, 3, 65]);
        assert_eq!(near(Some(&*nic), &[1 << 20]), [0usize; 0]);
        assert_eq!(near(None, &[u64::MAX]), [8, 9]);
        assert_eq!(near(Some(Path::new("/nowhere")), &[u64::MAX]), [0usize; 0]);
    }
}
