//! Layer: host / bootstrap.
//! Takes: a filter in the syntax of `NCCL_SOCKET_IFNAME`, and the kernel's list of interfaces.
//! Gives: the local address for listeners.
//! Never: opens a socket; the choice itself is pure.

use std::ffi::CStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::BootstrapError;

/// A filter of interfaces: `eth,ib` (prefixes), `=eth0` (exact names), `^docker,veth` (all but), `^=eth3`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceFilter {
    names: Vec<String>,
    exclude: bool,
    exact: bool,
}

/// One address of one interface that is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interface {
    pub name: String,
    pub addr: IpAddr,
    /// Number of leading bits of its network: addresses that agree in them are reached without a router.
    pub net_bits: u32,
}

impl Interface {
    /// Whether another address is in its network.
    pub(crate) fn reaches(&self, other: IpAddr) -> bool {
        let differ = match (self.addr, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (own.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits() ^ other.to_bits()).leading_zeros(),
            _ => return false,
        };
        differ >= self.net_bits
    }
}

impl InterfaceFilter {
    /// Parses the text; `None` if it names nothing.
    pub fn parse(text: &str) -> Option<InterfaceFilter> {
        let text = text.trim();
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let names: Vec<String> =
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        (!names.is_empty()).then_some(InterfaceFilter { names, exclude, exact })
    }

    fn admits(&self, interface: &str) -> bool {
        let named = self.names.iter().any(|name| {
            // `eth0:1` style suffixes carry a port in some configurations; only the name counts.
            let name = name.split(':').next().unwrap_or(name);
            if self.exact { interface == name } else { interface.starts_with(name) }
        });
        named != self.exclude
    }
}

impl fmt::Display for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.exclude { "^" } else { "" })?;
        f.write_str(if self.exact { "=" } else { "" })?;
        f.write_str(&self.names.join(","))
    }
}

/// Preference without a filter: 0 for real interfaces, 1 for bridges of containers and virtual machines, 2 for the
/// loopback.
pub(crate) fn class(interface: &Interface) -> u32 {
    let virtual_ = ["docker", "virbr", "veth", "br-", "cni", "podman"];
    if interface.addr.is_loopback() {
        2
    } else if virtual_.iter().any(|prefix| interface.name.starts_with(prefix)) {
        1
    } else {
        0
    }
}

/// Whether the user's filter and address family admit an interface.
pub(crate) fn is_admitted(
    interface: &Interface,
    filter: Option<&InterfaceFilter>,
    ipv6: Option<bool>,
) -> bool {
    ipv6.is_none_or(|wanted| interface.addr.is_ipv6() == wanted)
        && filter.is_none_or(|filter| filter.admits(&interface.name))
}

/// Selects an address. Without a filter: real interfaces first, then bridges of containers and virtual machines, then
/// the loopback. Within a class in the kernel's order, IPv4 before IPv6 by default.
pub(crate) fn choose(
    interfaces: &[Interface],
    filter: Option<&InterfaceFilter>,
    ipv6: Option<bool>,
) -> Result<IpAddr, BootstrapError> {
    interfaces
        .iter()
        .filter(|interface| is_admitted(interface, filter, ipv6))
        .min_by_key(|interface| (class(interface), interface.addr.is_ipv6()))
        .map(|interface| interface.addr)
        .ok_or_else(|| BootstrapError::NoInterface { wanted: wanted(filter, ipv6), there: there(interfaces) })
}

/// What was asked for, as the variables that ask for it.
fn wanted(filter: Option<&InterfaceFilter>, ipv6: Option<bool>) -> String {
    let family = ipv6.map(|ipv6| format!("NCCL_SOCKET_FAMILY={}", if ipv6 { "AF_INET6" } else { "AF_INET" }));
    let filter = filter.map(|filter| format!("NCCL_SOCKET_IFNAME=\"{filter}\""));
    let asked: Vec<String> = family.into_iter().chain(filter).collect();
    if asked.is_empty() { "any address family".to_owned() } else { asked.join(" and ") }
}

/// So many addresses are named.
const NAMED_MAX: usize = 8;

/// The addresses of this host, for an error; and what brings the loopback up, if it is down.
fn there(interfaces: &[Interface]) -> String {
    let named = interfaces.iter().take(NAMED_MAX).map(|one| format!("{} on {}", one.addr, one.name));
    let mut text = named.collect::<Vec<String>>().join(", ");
    match interfaces.len() {
        0 => text.push_str("no address"),
        all if all > NAMED_MAX => text += &format!(" and {} more", all - NAMED_MAX),
        _ => {}
    }
    if !interfaces.iter().any(|one| one.addr.is_loopback()) {
        text.push_str(", and its loopback is down (ip link set lo up)");
    }
    text
}

/// As [`there`], of this host now.
pub(crate) fn here() -> String {
    there(&list().unwrap_or_default())
}

/// The error of a listener at this address.
pub(crate) fn listening(ip: IpAddr, what: &'static str, error: &std::io::Error) -> BootstrapError {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => BootstrapError::NoAddress { ip, there: here() },
        _ => BootstrapError::io(what, error),
    }
}

/// The addresses of this host's interfaces that are up, without link-local IPv6: it needs a scope, and the scope
/// differs from host to host.
pub(crate) fn list() -> Result<Vec<Interface>, BootstrapError> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `head` is a valid place for the list's head; it is freed once below.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(BootstrapError::io("list network interfaces", &std::io::Error::last_os_error()));
    }
    let mut interfaces = Vec::new();
    let mut at = head;
    while !at.is_null() {
        // SAFETY: `at` came from getifaddrs and is freed only after the loop.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the kernel's list holds zero-terminated names and, where not null (checked), addresses laid out
        // as their family says.
        let (name, addr) = unsafe { (CStr::from_ptr(entry.ifa_name), ip_of(entry.ifa_addr)) };
        // SAFETY: as above; a mask is laid out as the address that it is of.
        let mask = (!entry.ifa_netmask.is_null()).then(|| unsafe { ip_of(entry.ifa_netmask) }).flatten();
        if let Some(addr) = addr.filter(|addr| !is_link_local_v6(addr)) {
            let name = name.to_string_lossy().into_owned();
            interfaces.push(Interface { name, addr, net_bits: net_bits(addr, mask) });
        }
    }
    // SAFETY: `head` is the list that getifaddrs made; nothing borrowed from it is alive.
    unsafe { libc::freeifaddrs(head) };
    Ok(interfaces)
}

/// The leading ones of a mask; all bits where there is none.
fn net_bits(addr: IpAddr, mask: Option<IpAddr>) -> u32 {
    match mask {
        Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
        None if addr.is_ipv4() => 32,
        None => 128,
    }
}

/// # Safety
/// `addr` points to a socket address whose length fits its family.
unsafe fn ip_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller promises a valid socket address; the family says which struct it is.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: as above, AF_INET means sockaddr_in; read unaligned because the list promises no alignment.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, AF_INET6 means sockaddr_in6.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

fn is_link_local_v6(addr: &IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Vec<Interface> {
        [
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "2001:db8::5"),
            ("eth0", "10.0.0.5"),
            ("ib0", "10.1.0.5"),
            ("lo", "::1"),
        ]
        .map(|(name, addr)| Interface {
            name: name.into(),
            addr: addr.parse().expect("a test address"),
            net_bits: 24,
        })
        .to_vec()
    }

    fn pick(filter: &str, ipv6: Option<bool>) -> Option<String> {
        choose(&host(), InterfaceFilter::parse(filter).as_ref(), ipv6).ok().map(|addr| addr.to_string())
    }

    #[test]
    fn the_choice_follows_the_filter_then_the_class() {
        let table = [
            ("", None, Some("10.0.0.5")),
            ("", Some(true), Some("2001:db8::5")),
            ("ib", None, Some("10.1.0.5")),
            ("ib,eth", None, Some("10.0.0.5")),
            ("=ib", None, None),
            ("=ib0", None, Some("10.1.0.5")),
            ("^eth,ib", None, Some("172.17.0.1")),
            ("^=eth0", None, Some("10.1.0.5")),
            ("lo", None, Some("127.0.0.1")),
            ("lo", Some(true), Some("::1")),
            ("^eth,ib,docker", None, Some("127.0.0.1")),
            ("wlan", None, None),
            (" , ", None, Some("10.0.0.5")),
        ];
        for (filter, ipv6, want) in table {
            assert_eq!(pick(filter, ipv6).as_deref(), want, "filter {filter:?}, ipv6 {ipv6:?}");
        }
    }

    #[test]
    fn the_error_repeats_what_was_asked_for() {
        let filter = InterfaceFilter::parse("^=eth0,ib0,docker0,lo");
        let error = choose(&host(), filter.as_ref(), None).expect_err("everything is excluded");
        let wanted = "NCCL_SOCKET_IFNAME=\"^=eth0,ib0,docker0,lo\"".to_owned();
        let there = "127.0.0.1 on lo, 172.17.0.1 on docker0, 2001:db8::5 on eth0, 10.0.0.5 on eth0, 10.1.0.5 on ib0, ::1 on lo".to_owned();
        assert_eq!(error, BootstrapError::NoInterface { wanted, there });
    }

    #[test]
    fn the_error_says_what_there_is_instead() {
        let of = |name: &str, addr: &str| Interface {
            name: name.into(),
            addr: addr.parse().expect("a test address"),
            net_bits: 64,
        };
        let only_v6 = [of("lo", "::1"), of("eth0", "fd77::5")];
        let error = choose(&only_v6, None, Some(false)).expect_err("no IPv4").to_string();
        assert!(
            error.ends_with("fits NCCL_SOCKET_FAMILY=AF_INET: this host has ::1 on lo, fd77::5 on eth0"),
            "{error}"
        );
        let error = choose(&only_v6[1..], None, Some(false)).expect_err("no IPv4").to_string();
        assert!(error.ends_with("fd77::5 on eth0, and its loopback is down (ip link set lo up)"), "{error}");
        let error = choose(&[], None, None).expect_err("nothing").to_string();
        assert!(
            error.ends_with("this host has no address, and its loopback is down (ip link set lo up)"),
            "{error}"
        );
        let many: Vec<Interface> = (0..20).map(|_| of("lo", "::1")).collect();
        assert!(there(&many).ends_with("::1 on lo and 12 more"), "{}", there(&many));
    }

    #[test]
    fn an_interface_reaches_its_network() {
        let of = |addr: &str, net_bits| Interface {
            name: "eth0".into(),
            addr: addr.parse().expect("a test address"),
            net_bits,
        };
        let reaches =
            |addr, net_bits, other: &str| of(addr, net_bits).reaches(other.parse().expect("a test address"));
        assert!(reaches("10.1.2.3", 24, "10.1.2.200") && !reaches("10.1.2.3", 24, "10.1.3.3"));
        assert!(reaches("10.1.2.3", 0, "192.168.0.1") && reaches("10.1.2.3", 32, "10.1.2.3"));
        assert!(reaches("fd77::1", 64, "fd77::ffff:1") && !reaches("fd77::1", 64, "fd78::1"));
        assert!(!reaches("10.1.2.3", 0, "::1"));
    }

    #[test]
    fn this_host_has_a_loopback() {
        let list = list().expect("getifaddrs works");
        assert!(list.iter().any(|interface| interface.name == "lo" && matches!(interface.net_bits, 8 | 128)));
        assert!(list.iter().any(|interface| interface.addr.is_loopback()), "{list:?}");
    }
}
