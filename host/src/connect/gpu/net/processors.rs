//! The CPUs near a network device and the GPU that uses it.

use crate::net::Net;
use crate::topology::BusId;
use crate::topology::detect::Sysfs;
use std::path::Path;

/// The CPUs near a device that this process may use; near the GPU if the device is no PCI device. None if unknown.
pub(super) fn near(sysfs: &Sysfs, device: Option<&Path>, gpu: BusId, allowed: &[u64]) -> Vec<usize> {
    let gpu = sysfs.place(gpu);
    let near = device.or(gpu.as_deref()).map(|place| sysfs.processors_of(place)).unwrap_or_default();
    let is_allowed = |cpu: &usize| allowed.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1);
    near.into_iter().filter(is_allowed).collect()
}

/// Most threads of a rank's proxy.
const THREADS_MAX: u32 = 4;
/// One in so many of a rank's CPUs is the proxy's.
const PROCESSORS_PER_THREAD: u32 = 4;

/// Number of threads that drive a rank's connections, given the host's CPUs for each rank: one, if a NIC moves the
/// bytes.
pub(super) fn proxy_threads(net: &dyn Net, processors_each: u32) -> u32 {
    if net.is_moved_by_processors() {
        (processors_each / PROCESSORS_PER_THREAD).clamp(1, THREADS_MAX)
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::loopback::Loopback;

    #[test]
    fn a_quarter_of_the_processors_are_the_proxys() {
        let threads = [0, 1, 7, 8, 16, 64].map(|each| proxy_threads(&Loopback::new(0), each));
        assert_eq!(threads, [1, 1, 1, 2, 4, 4]);
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
        let of = |device, allowed: &[u64]| near(&sysfs, device, BusId::new(0, 0x42, 0), allowed);
        assert_eq!(of(Some(&*nic), &[0b1010, 0b10]), [1, 3, 65]);
        assert_eq!(of(Some(&*nic), &[1 << 20]), [0usize; 0]);
        assert_eq!(of(None, &[u64::MAX]), [8, 9]);
        assert_eq!(of(Some(Path::new("/nowhere")), &[u64::MAX]), [0usize; 0]);
    }
}
