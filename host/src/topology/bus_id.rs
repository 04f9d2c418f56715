//! Layer: host / topology, a leaf.
//! Takes: text such as `0000:06:00.0`.
//! Gives: [`BusId`], ordered as the digits are.
//! Never: fixed widths on input: NVSwitches behind fabric managers are written `fffffff:ff:ff.0`.

use std::fmt;
use std::str::FromStr;

/// A PCI address: domain, bus, device and function as one number, four bits a digit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct BusId(pub u64);

impl BusId {
    /// The first function of a device.
    pub fn new(domain: u32, bus: u8, device: u8) -> BusId {
        BusId(u64::from(domain) << 20 | u64::from(bus) << 12 | u64::from(device) << 4)
    }

    /// Clears the function: the ports of a NIC are functions of one device.
    pub fn without_function(self) -> BusId {
        BusId(self.0 & !0xf)
    }
}

/// Text that is no PCI address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotABusId;

impl FromStr for BusId {
    type Err = NotABusId;

    /// `domain:bus:device.function` in hexadecimal; the domain may be missing, as `lspci` leaves it out.
    fn from_str(text: &str) -> Result<BusId, NotABusId> {
        let (head, function) = text.rsplit_once('.').ok_or(NotABusId)?;
        let parts: Vec<&str> = head.split(':').collect();
        let (domain, bus, device) = match parts[..] {
            [domain, bus, device] => (domain, bus, device),
            [bus, device] => ("0", bus, device),
            _ => return Err(NotABusId),
        };
        let field = |text: &str, digits: usize| {
            let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let fits = !text.is_empty() && text.len() <= digits && is_hex;
            if fits { u64::from_str_radix(text, 16).map_err(|_| NotABusId) } else { Err(NotABusId) }
        };
        let (domain, bus) = (field(domain, 8)?, field(bus, 2)?);
        let (device, function) = (field(device, 2)?, field(function, 1)?);
        Ok(BusId(domain << 20 | bus << 12 | device << 4 | function))
    }
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BusId(id) = *self;
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", id >> 20, id >> 12 & 0xff, id >> 4 & 0xff, id & 0xf)
    }
}

impl fmt::Debug for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_read() {
        for text in ["0000:06:00.0", "fffffff:ff:ff.0", "0103:00:00.0", "ffff:ff:01.0", "10000:e1:1f.7"] {
            assert_eq!(text.parse::<BusId>().unwrap().to_string(), text);
        }
        assert_eq!("06:00.1".parse::<BusId>().unwrap().to_string(), "0000:06:00.1");
        assert_eq!("0000:41:00.1".parse::<BusId>().unwrap().without_function().to_string(), "0000:41:00.0");
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "0", "0:0", "0000:06:00", "0000:06:00.10", "x:06:00.0", "0:0:0:0.0", "+1:06:00.0"] {
            assert_eq!(text.parse::<BusId>(), Err(NotABusId), "{text}");
        }
    }
}
