//! Interfaces as devices.

use super::config::SocketConfig;
use crate::bootstrap::iface::{self, Interface};
use crate::net::NetError;
use std::net::IpAddr;
use std::path::Path;

/// Mbit/s of an interface that does not say: virtual ones, mostly.
const SPEED_UNKNOWN_MBPS: u32 = 10_000;

/// An interface with one of its addresses.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub name: String,
    pub addr: IpAddr,
    pub pci_path: Option<String>,
    pub speed_mbps: u32,
}

/// The interfaces that may be used, in the kernel's order.
pub(super) fn list(config: &SocketConfig) -> Result<Vec<Device>, NetError> {
    let interfaces =
        iface::list().map_err(|error| NetError::of_call(super::NAME, "getifaddrs", error.to_string()))?;
    Ok(choose(&interfaces, config)
        .into_iter()
        .map(|interface| describe(interface, Path::new("/sys")))
        .collect())
}

/// Of the interfaces that the user admits: the best class if the user named none, else all. One address of each.
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

fn describe(interface: &Interface, sysfs: &Path) -> Device {
    let folder = sysfs.join("class/net").join(&interface.name);
    let speed = std::fs::read_to_string(folder.join("speed")).ok();
    // -1 where the link is down or the driver does not know; such interfaces exist only on paper or are virtual.
    let speed = speed.and_then(|text| text.trim().parse::<u32>().ok()).filter(|mbps| *mbps > 0);
    let pci_path = std::fs::canonicalize(folder.join("device")).ok();
    Device {
        name: interface.name.clone(),
        addr: interface.addr,
        pci_path: pci_path.map(|path| path.to_string_lossy().into_owned()),
        speed_mbps: speed.unwrap_or(SPEED_UNKNOWN_MBPS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::InterfaceFilter;

    fn interface(name: &str, addr: &str) -> Interface {
        Interface { name: name.to_owned(), addr: addr.parse().expect("an address") }
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
