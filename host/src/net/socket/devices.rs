//! Interfaces as devices, and the choice of a device for a route.

use super::config::{NAME, SocketConfig};
use crate::bootstrap::iface::{self, Interface};
use crate::net::NetError;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

/// Assumed speed in Mbit/s of an interface that does not report one: mostly virtual ones.
const SPEED_UNKNOWN_MBPS: u32 = 10_000;

/// An interface with one of its addresses.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub interface: Interface,
    pub pci_path: Option<String>,
    pub speed_mbps: u32,
}

/// The interfaces that may be used, in the kernel's order.
pub(super) fn list(config: &SocketConfig) -> Result<Vec<Device>, NetError> {
    let interfaces =
        iface::list().map_err(|error| NetError::of_call(NAME, "getifaddrs", error.to_string()))?;
    Ok(choose(&interfaces, config)
        .into_iter()
        .map(|interface| describe(interface, Path::new("/sys")))
        .collect())
}

/// The best class of interfaces if the user named none, else all that the user admits. One address of each.
fn choose<'a>(interfaces: &'a [Interface], config: &SocketConfig) -> Vec<&'a Interface> {
    let filter = config.interfaces.as_ref();
    let mut chosen: Vec<&Interface> =
        interfaces.iter().filter(|interface| iface::is_admitted(interface, filter, config.ipv6)).collect();
    if filter.is_none() {
        let best = chosen.iter().map(|interface| iface::class(interface)).min();
        chosen.retain(|interface| Some(iface::class(interface)) == best);
    }
    let first = |of: &Interface| {
        let same = chosen.iter().copied().filter(|other| other.name == of.name);
        same.min_by_key(|other| other.addr.is_ipv6()).map(|other| other.addr)
    };
    let firsts: Vec<&Interface> =
        chosen.iter().copied().filter(|interface| first(interface) == Some(interface.addr)).collect();
    firsts
}

/// The device for a connection to `peer`: the preferred one if its network contains that address, else the one of the
/// kernel's route. The preferred one if there is neither.
pub(super) fn towards(devices: &[Device], peer: SocketAddr, preferred: usize) -> usize {
    let reaches = |device: &Device| device.interface.reaches(peer.ip());
    if devices.get(preferred).is_some_and(reaches) {
        return preferred;
    }
    let source = source_towards(peer);
    let is_routed = |device: &Device| Some(device.interface.addr) == source;
    devices.iter().position(is_routed).or_else(|| devices.iter().position(reaches)).unwrap_or(preferred)
}

/// The local address that the kernel would choose for `peer`. Sends nothing.
fn source_towards(peer: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if peer.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().ok()?;
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|source| source.ip())
}

fn describe(interface: &Interface, sysfs: &Path) -> Device {
    let folder = sysfs.join("class/net").join(&interface.name);
    let speed = std::fs::read_to_string(folder.join("speed")).ok();
    // -1 where the link is down or the driver does not know; such interfaces are unused or virtual.
    let speed = speed.and_then(|text| text.trim().parse::<u32>().ok()).filter(|mbps| *mbps > 0);
    let pci_path = std::fs::canonicalize(folder.join("device")).ok();
    Device {
        interface: interface.clone(),
        pci_path: pci_path.map(|path| path.to_string_lossy().into_owned()),
        speed_mbps: speed.unwrap_or(SPEED_UNKNOWN_MBPS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::InterfaceFilter;

    fn interface(name: &str, addr: &str) -> Interface {
        Interface { name: name.to_owned(), addr: addr.parse().expect("an address"), net_bits: 24 }
    }

    fn names(filter: &str, ipv6: Option<bool>) -> Vec<String> {
        let host = [
            interface("lo", "127.0.0.1"),
            interface("lo", "::1"),
            interface("docker0", "172.17.0.1"),
            interface("eth0", "2001:db8::5"),
            interface("eth0", "10.0.0.5"),
            interface("eth1", "2001:db8::6"),
        ];
        let config =
            SocketConfig { interfaces: InterfaceFilter::parse(filter), ipv6, ..SocketConfig::default() };
        choose(&host, &config).iter().map(|chosen| format!("{} {}", chosen.name, chosen.addr)).collect()
    }

    #[test]
    fn each_real_interface_is_one_device_and_others_serve_where_there_is_none() {
        assert_eq!(names("", None), ["eth0 10.0.0.5", "eth1 2001:db8::6"]);
        assert_eq!(names("", Some(true)), ["eth0 2001:db8::5", "eth1 2001:db8::6"]);
        assert_eq!(names("lo,eth1", None), ["lo 127.0.0.1", "eth1 2001:db8::6"]);
        assert_eq!(names("=eth", None), [] as [&str; 0]);
    }

    #[test]
    fn a_connection_leaves_by_the_device_whose_network_has_the_peer() {
        let device = |name, addr| describe(&interface(name, addr), Path::new("/nowhere"));
        let devices = [device("eth0", "10.0.1.5"), device("eth1", "10.0.2.5"), device("eth2", "10.0.2.6")];
        let towards = |peer: &str, preferred| towards(&devices, peer.parse().expect("an address"), preferred);
        assert_eq!(towards("10.0.1.9:1", 0), 0);
        assert_eq!(towards("10.0.1.9:1", 1), 0);
        // Of two equal ones: the preferred one.
        assert_eq!([towards("10.0.2.9:1", 0), towards("10.0.2.9:1", 1), towards("10.0.2.9:1", 2)], [1, 1, 2]);
        assert_eq!(towards("[fd77::1]:1", 2), 2);
    }

    #[test]
    fn the_kernel_says_by_which_address_a_route_leaves() {
        let here: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        assert_eq!(source_towards(here), Some(here.ip()));
    }

    #[test]
    fn speed_and_place_come_from_sysfs() {
        let sysfs = tempfile::tempdir().expect("a folder");
        let folder = sysfs.path().join("class/net/eth0");
        let card = sysfs.path().join("devices/0000:3b:00.0");
        std::fs::create_dir_all(&folder).and_then(|()| std::fs::create_dir_all(&card)).expect("folders");
        std::os::unix::fs::symlink(&card, folder.join("device")).expect("a link");
        for (text, mbps) in [("25000\n", 25_000), ("-1\n", SPEED_UNKNOWN_MBPS), ("", SPEED_UNKNOWN_MBPS)] {
            std::fs::write(folder.join("speed"), text).expect("a file");
            let device = describe(&interface("eth0", "10.0.0.5"), sysfs.path());
            assert_eq!(device.speed_mbps, mbps);
            assert!(device.pci_path.expect("a card").ends_with("0000:3b:00.0"));
        }
    }
}
