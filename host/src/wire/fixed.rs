//! Layer: host / wire.
//! Takes: bytes from the network.
//! Gives: [`Reader`], which decodes numbers and addresses from the front of a slice, and their encoders.
//! Never: panics or reads past the end, whatever the bytes are. All numbers are little-endian.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The bytes end too early, are too many, or contain an invalid value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Decodes values from the front of a slice.
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// An address takes this many bytes: family, port, 16 bytes of address.
pub const ADDR_BYTES: usize = 19;

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next 16-bit number.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 32-bit number.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 64-bit number.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next socket address.
    pub fn addr(&mut self) -> Result<SocketAddr, Malformed> {
        let family = self.u8()?;
        let port = self.u16()?;
        let bytes: [u8; 16] = self.array()?;
        let ip = match family {
            4 => {
                let (v4, zeros) = bytes.split_first_chunk::<4>().ok_or(Malformed)?;
                if zeros.iter().any(|&byte| byte != 0) {
                    return Err(Malformed);
                }
                IpAddr::V4(Ipv4Addr::from(*v4))
            }
            6 => IpAddr::V6(Ipv6Addr::from(bytes)),
            _ => return Err(Malformed),
        };
        Ok(SocketAddr::new(ip, port))
    }

    /// The rest.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Ends the reading: no bytes may be left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// An address as [`Reader::addr`] reads it.
pub fn addr_bytes(addr: SocketAddr) -> [u8; ADDR_BYTES] {
    let mut bytes = [0; ADDR_BYTES];
    bytes[1..3].copy_from_slice(&addr.port().to_le_bytes());
    match addr.ip() {
        IpAddr::V4(v4) => {
            bytes[0] = 4;
            bytes[3..7].copy_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            bytes[0] = 6;
            bytes[3..].copy_from_slice(&v6.octets());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_survive_the_trip(v6 in any::<bool>(), ip in any::<u128>(), port in any::<u16>()) {
            let ip = if v6 { IpAddr::V6(ip.into()) } else { IpAddr::V4((ip as u32).into()) };
            let addr = SocketAddr::new(ip, port);
            let bytes = addr_bytes(addr);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.addr(), Ok(addr));
            prop_assert_eq!(reader.finish(), Ok(()));
        }

        #[test]
        fn what_reads_as_an_address_writes_back_the_same(bytes in any::<[u8; ADDR_BYTES]>()) {
            if let Ok(addr) = Reader::new(&bytes).addr() {
                prop_assert_eq!(addr_bytes(addr), bytes);
            }
        }
    }
}
