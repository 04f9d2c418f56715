//! Messages between ranks while an arena is set up.

use super::allocation::{Access, AllocationKind};
use crate::gpu::{DeviceId, IPC_HANDLE_BYTES};
use crate::wire::{Message, bytes};
use serde::{Deserialize, Serialize};

/// A rank's GPU and process, as far as sharing memory is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct GpuInfo {
    /// The GPU's UUID, the same in every process.
    pub uuid: [u8; 16],
    /// Its name in messages; its ordinal is that of the rank's process.
    pub device: DeviceId,
    /// Whether it exports memory as file descriptors.
    pub exports_fds: bool,
    /// Inode of the PID namespace of the process; 0 if the system does not report it.
    pub pid_namespace: u64,
    /// Random, different for every arena and rank: names the rank's socket and authenticates its users.
    pub token: u64,
}

impl Message for GpuInfo {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 64;
}

/// A rank's access to the ranks of its host, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct AccessRow(pub Vec<Access>);

impl Message for AccessRow {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 1 << 16;
}

/// What a peer needs to reach an owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct MemoryInfo {
    /// Its kind.
    pub kind: AllocationKind,
    /// Bytes requested by the owner's caller.
    pub len_bytes: u64,
    /// Bytes allocated, which a mapping must state.
    pub mapped_bytes: u64,
    /// Its address in the owner's process.
    pub address: u64,
    /// For other processes, if the memory is from `cuMemAlloc`.
    pub handle: Option<IpcHandleBytes>,
}

/// A handle of `cuIpcGetMemHandle`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct IpcHandleBytes(#[serde(with = "bytes")] pub [u8; IPC_HANDLE_BYTES]);

impl Message for MemoryInfo {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 48 + IPC_HANDLE_BYTES;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::PciBus;

    #[test]
    fn gpu_infos_round_trip_and_nothing_else_is_one() {
        let bus = PciBus { domain: u32::MAX, bus: 0xff, device: 0xff };
        let gpu = GpuInfo {
            uuid: std::array::from_fn(|i| i as u8),
            device: DeviceId { ordinal: u32::MAX, bus },
            exports_fds: true,
            pid_namespace: u64::MAX - 1,
            token: u64::MAX,
        };
        let bytes = gpu.to_bytes();
        assert_eq!(GpuInfo::from_bytes(&bytes), Ok(gpu));
        assert!(GpuInfo::from_bytes(&bytes[1..]).is_err());
        assert!(GpuInfo::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        let mut wrong = bytes;
        assert_eq!(std::mem::replace(&mut wrong[29], 2), 1, "whether it exports descriptors");
        assert!(GpuInfo::from_bytes(&wrong).is_err());
    }

    #[test]
    fn memory_infos_round_trip_with_and_without_a_handle() {
        for handle in [None, Some(IpcHandleBytes([9; IPC_HANDLE_BYTES]))] {
            let (len_bytes, mapped_bytes, address) = (5, u64::MAX, 0x7f00_0000_0000);
            let info =
                MemoryInfo { kind: AllocationKind::Shareable, len_bytes, mapped_bytes, address, handle };
            let bytes = info.to_bytes();
            assert_eq!(MemoryInfo::from_bytes(&bytes), Ok(info));
            assert!(MemoryInfo::from_bytes(&bytes[..bytes.len() - 1]).is_err());
            assert!(MemoryInfo::from_bytes(&[&[1, 9], &bytes[2..]].concat()).is_err(), "no such kind");
        }
    }
}
