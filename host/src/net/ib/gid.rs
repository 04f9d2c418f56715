//! Chooses the GID of a connection. In RoCE it is the address: with a wrong one, packets reach no host.

use super::config::IbConfig;
use super::verbs::abi::Gid;
use std::net::{IpAddr, Ipv6Addr};

/// An entry of a port's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub index: u8,
    pub gid: Gid,
    /// The version of RoCE, if the kernel reports it.
    pub roce_version: Option<u8>,
}

impl Gid {
    /// The IP address that it encodes in RoCE; on InfiniBand an identifier of the same form.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// The first half, which all ports of one InfiniBand subnet share.
    pub fn subnet(&self) -> &[u8] {
        &self.0[..8]
    }
}

/// The entry that the user named, or the best: an address in the wanted range, not link-local, of the wanted family,
/// of the wanted version of RoCE; of equal ones the first.
pub(super) fn choose(entries: &[Entry], config: &IbConfig) -> Option<Entry> {
    let is_set = |entry: &&Entry| entry.gid != Gid::default();
    if let Some(index) = config.gid_index {
        return entries.iter().filter(is_set).find(|entry| entry.index == index).copied();
    }
    let in_range =
        |entry: &&Entry| config.address_range.is_none_or(|range| range.contains(entry.gid.address()));
    let usable = entries.iter().filter(is_set).filter(in_range);
    let penalty = |entry: &&Entry| {
        let address = entry.gid.address();
        let link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        let other_version = entry.roce_version.is_some_and(|version| version != config.roce_version);
        (link_local, address.is_ipv6() != config.prefer_ipv6, other_version, entry.index)
    };
    usable.min_by_key(penalty).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ib::AddressRange;

    fn entry(index: u8, address: &str, roce_version: u8) -> Entry {
        let address = match address.parse().expect("an address") {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Entry { index, gid: Gid(address.octets()), roce_version: Some(roce_version) }
    }

    /// A port of mlx5: each address in both versions.
    fn table() -> Vec<Entry> {
        vec![
            entry(0, "fe80::1", 1),
            entry(1, "fe80::1", 2),
            entry(2, "10.9.0.1", 1),
            entry(3, "10.9.0.1", 2),
            entry(4, "10.1.0.1", 2),
            entry(5, "fd00::7", 2),
            entry(6, "::", 2),
        ]
    }

    fn chosen(change: impl FnOnce(&mut IbConfig)) -> Option<u8> {
        let mut config = IbConfig::default();
        change(&mut config);
        choose(&table(), &config).map(|entry| entry.index)
    }

    #[test]
    fn the_best_is_a_routable_ipv4_of_version_two() {
        assert_eq!(chosen(|_| {}), Some(3));
        assert_eq!(chosen(|config| config.roce_version = 1), Some(2));
        assert_eq!(chosen(|config| config.prefer_ipv6 = true), Some(5));
        assert_eq!(chosen(|config| config.address_range = AddressRange::parse("10.1.0.0/16")), Some(4));
        assert_eq!(chosen(|config| config.address_range = AddressRange::parse("fd00::/8")), Some(5));
        assert_eq!(chosen(|config| config.address_range = AddressRange::parse("192.168.0.0/16")), None);
    }

    #[test]
    fn a_named_entry_wins_if_it_exists() {
        assert_eq!(chosen(|config| config.gid_index = Some(0)), Some(0));
        assert_eq!(chosen(|config| config.gid_index = Some(6)), None, "that entry is empty");
        assert_eq!(chosen(|config| config.gid_index = Some(9)), None);
    }

    #[test]
    fn a_port_with_link_local_addresses_only_uses_them() {
        let entries = &table()[..2];
        assert_eq!(choose(entries, &IbConfig::default()).map(|entry| entry.index), Some(1));
        assert_eq!(choose(&[], &IbConfig::default()), None);
    }
}
