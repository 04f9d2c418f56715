//! What ranks tell each other while an arena comes into being.

use super::home::{Access, Home};
use crate::gpu::{DeviceId, IPC_HANDLE_BYTES};
use crate::wire::{Message, bytes};
use serde::{Deserialize, Serialize};

/// A rank's GPU and process, as far as sharing memory is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
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

impl Message for Card {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 64;
}

/// What a rank says of the ranks of its host, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct AccessRow(pub Vec<Access>);

impl Message for AccessRow {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 1 << 16;
}

/// What a peer needs to reach an owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
    pub handle: Option<IpcHandleBytes>,
}

/// A handle of `cuIpcGetMemHandle`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct IpcHandleBytes(#[serde(with = "bytes")] pub [u8; IPC_HANDLE_BYTES]);

impl Message for Offer {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 48 + IPC_HANDLE_BYTES;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::PciBus;

    #[test]
    fn cards_round_trip_and_nothing_else_is_one() {
        let bus = PciBus { domain: u32::MAX, bus: 0xff, device: 0xff };
        let card = Card {
            uuid: std::array::from_fn(|i| i as u8),
            device: DeviceId { ordinal: u32::MAX, bus },
            exports_fds: true,
            pid_namespace: u64::MAX - 1,
            token: u64::MAX,
        };
        let bytes = card.to_bytes();
        assert_eq!(Card::from_bytes(&bytes), Ok(card));
        assert!(Card::from_bytes(&bytes[1..]).is_err());
        assert!(Card::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        let mut wrong = bytes;
        assert_eq!(std::mem::replace(&mut wrong[29], 2), 1, "whether it exports descriptors");
        assert!(Card::from_bytes(&wrong).is_err());
    }

    #[test]
    fn offers_round_trip_with_and_without_a_handle() {
        for handle in [None, Some(IpcHandleBytes([9; IPC_HANDLE_BYTES]))] {
            let (len_bytes, mapped_bytes, address) = (5, u64::MAX, 0x7f00_0000_0000);
            let offer = Offer { home: Home::Shareable, len_bytes, mapped_bytes, address, handle };
            let bytes = offer.to_bytes();
            assert_eq!(Offer::from_bytes(&bytes), Ok(offer));
            assert!(Offer::from_bytes(&bytes[..bytes.len() - 1]).is_err());
            assert!(Offer::from_bytes(&[&[1, 9], &bytes[2..]].concat()).is_err(), "no such home");
        }
    }
}
