//! What ranks tell each other while an arena comes into being.

use super::home::Home;
use crate::gpu::{DeviceId, IPC_HANDLE_BYTES, PciBus};

/// A rank's GPU and process, as far as sharing memory is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Card {
    /// The GPU, the same seen from every process.
    pub uuid: [u8; 16],
    /// Its name in messages; its number is that of the rank's process.
    pub device: DeviceId,
    /// Whether it exports memory as file descriptors.
    pub exports_fds: bool,
    /// Inode of the namespace in which the process's id means something; 0 where the system does not tell.
    pub pid_namespace: u64,
    /// Random, another one for every arena and rank: names the rank's socket and proves who knows it.
    pub token: u64,
}

/// Bytes of a [`Card`] on the wire.
const CARD_BYTES: usize = 16 + 4 + 4 + 1 + 1 + 1 + 8 + 8;

impl Card {
    /// For the wire.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CARD_BYTES);
        bytes.extend(self.uuid);
        bytes.extend(self.device.ordinal.to_le_bytes());
        bytes.extend(self.device.bus.domain.to_le_bytes());
        bytes.extend([self.device.bus.bus, self.device.bus.device, u8::from(self.exports_fds)]);
        bytes.extend(self.pid_namespace.to_le_bytes());
        bytes.extend(self.token.to_le_bytes());
        bytes
    }

    /// From the wire; nothing if it is no card.
    pub fn from_bytes(bytes: &[u8]) -> Option<Card> {
        let mut rest = Fields(bytes);
        let card = Card {
            uuid: rest.take()?,
            device: DeviceId {
                ordinal: u32::from_le_bytes(rest.take()?),
                bus: PciBus {
                    domain: u32::from_le_bytes(rest.take()?),
                    bus: u8::from_le_bytes(rest.take()?),
                    device: u8::from_le_bytes(rest.take()?),
                },
            },
            exports_fds: flag(rest.take()?)?,
            pid_namespace: u64::from_le_bytes(rest.take()?),
            token: u64::from_le_bytes(rest.take()?),
        };
        rest.0.is_empty().then_some(card)
    }
}

/// What a peer needs to reach an owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    /// Where it lies.
    pub home: Home,
    /// Bytes that the owner's caller asked for.
    pub len_bytes: u64,
    /// Bytes that were allocated, which a mapping must name.
    pub mapped_bytes: u64,
    /// Its address in the owner's process.
    pub address: u64,
    /// For other processes, if it is of `cuMemAlloc`.
    pub handle: Option<[u8; IPC_HANDLE_BYTES]>,
}

impl Offer {
    /// For the wire.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.home.to_wire()];
        for number in [self.len_bytes, self.mapped_bytes, self.address] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.handle.into_iter().flatten());
        bytes
    }

    /// From the wire; nothing if it is no offer.
    pub fn from_bytes(bytes: &[u8]) -> Option<Offer> {
        let mut rest = Fields(bytes);
        let home = Home::from_wire(u8::from_le_bytes(rest.take()?))?;
        let (len_bytes, mapped_bytes) = (u64::from_le_bytes(rest.take()?), u64::from_le_bytes(rest.take()?));
        let address = u64::from_le_bytes(rest.take()?);
        let handle = if rest.0.is_empty() { None } else { Some(rest.take()?) };
        rest.0.is_empty().then_some(Offer { home, len_bytes, mapped_bytes, address, handle })
    }
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
}

fn flag([byte]: [u8; 1]) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_round_trip_and_nothing_else_is_one() {
        let card = Card {
            uuid: std::array::from_fn(|i| i as u8),
            device: DeviceId { ordinal: 7, bus: PciBus { domain: 0x1_0000, bus: 0x4e, device: 1 } },
            exports_fds: true,
            pid_namespace: u64::MAX - 1,
            token: 42,
        };
        let bytes = card.to_bytes();
        assert_eq!((bytes.len(), Card::from_bytes(&bytes)), (CARD_BYTES, Some(card)));
        assert_eq!(Card::from_bytes(&bytes[1..]), None);
        assert_eq!(Card::from_bytes(&[&bytes[..], &[0]].concat()), None);
        let mut wrong = bytes;
        wrong[26] = 2;
        assert_eq!(Card::from_bytes(&wrong), None);
    }

    #[test]
    fn offers_round_trip_with_and_without_a_handle() {
        for handle in [None, Some([9; IPC_HANDLE_BYTES])] {
            let (len_bytes, mapped_bytes, address) = (5, 2 << 20, 0x7f00_0000_0000);
            let offer = Offer { home: Home::Shareable, len_bytes, mapped_bytes, address, handle };
            let bytes = offer.to_bytes();
            assert_eq!(Offer::from_bytes(&bytes), Some(offer));
            assert_eq!(Offer::from_bytes(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Offer::from_bytes(&[9; 25]), None, "no such home");
    }
}
