//! Ranges of addresses, by which users choose GIDs.

use std::net::IpAddr;

/// Addresses that share a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    start: IpAddr,
    prefix_bits: u8,
}

impl AddressRange {
    /// Reads `10.1.0.0/16` or `fd00::/8`.
    pub fn parse(text: &str) -> Option<AddressRange> {
        let (start, bits) = text.split_once('/')?;
        let (start, prefix_bits): (IpAddr, u8) = (start.parse().ok()?, bits.parse().ok()?);
        let bits_max = if start.is_ipv6() { 128 } else { 32 };
        (prefix_bits <= bits_max).then_some(AddressRange { start, prefix_bits })
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.prefix_bits);
        match (self.start, address) {
            (IpAddr::V4(start), IpAddr::V4(address)) => {
                (start.to_bits() ^ address.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(start), IpAddr::V6(address)) => {
                (start.to_bits() ^ address.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_their_prefix_does() {
        let range = AddressRange::parse("10.1.2.0/23").expect("a range");
        assert!(range.contains("10.1.3.255".parse().expect("an address")));
        assert!(!range.contains("10.1.4.0".parse().expect("an address")));
        let all = AddressRange::parse("0.0.0.0/0").expect("a range");
        assert!(all.contains("255.0.0.1".parse().expect("an address")));
        assert!(!all.contains("::1".parse().expect("an address")));
        for text in ["10.1.0.0", "10.1.0.0/33", "x/8", "fd00::/129", "/8"] {
            assert_eq!(AddressRange::parse(text), None, "{text}");
        }
    }
}
