//! The tiles that a launch gives to kernels with bulk copies: dynamic shared memory of each block.

use super::driver::Device;
use oxccl_device::gpu::SHARED_BYTES;
use oxccl_shared::abi::{DataType, KERNEL_TILES_AT, KERNEL_TILES_MAX};
use oxccl_shared::algo::kernels::Kernel;
use oxccl_shared::algo::symmetric::reduced_max;

/// The first generation with bulk copies.
const SM_MIN: u32 = 90;

/// Bytes of a tile, and of all that a block gets. A rank may have others than its peers, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tiles {
    /// 0 for ordinary copies.
    pub tile_bytes: u32,
    /// Barriers and tiles.
    pub shared_bytes: u32,
}

impl Tiles {
    /// As many tiles of so many bytes as a block of the device has room for.
    pub fn on(device: &Device, tile_bytes: u32) -> Tiles {
        Tiles::within(Tiles::shared_max(device), tile_bytes)
    }

    fn within(shared_max: u32, tile_bytes: u32) -> Tiles {
        let room = shared_max.saturating_sub(KERNEL_TILES_AT);
        let count = room.checked_div(tile_bytes).unwrap_or(0).min(KERNEL_TILES_MAX);
        match count {
            0 => Tiles::default(),
            count => Tiles { tile_bytes, shared_bytes: KERNEL_TILES_AT + count * tile_bytes },
        }
    }

    /// Whether a symmetric kernel can do with these: more than it has operands, of each rank one in a reduction; or none, if its threads can
    /// move all.
    pub fn suffice(self, nranks: u32, reduced: Option<DataType>) -> bool {
        let operands = reduced.map_or(1, |_| nranks);
        let bytes = self.shared_bytes.saturating_sub(KERNEL_TILES_AT);
        match bytes.checked_div(self.tile_bytes) {
            Some(count) => count > operands,
            None => reduced.is_none_or(|dtype| nranks <= reduced_max(dtype)),
        }
    }

    /// What a launch of this kernel gets.
    pub fn of(self, kernel: Kernel) -> Tiles {
        if kernel.has_tiles() { self } else { Tiles::default() }
    }

    /// The most dynamic shared memory of a block of a kernel with bulk copies; 0 where there is no engine for them.
    pub fn shared_max(device: &Device) -> u32 {
        match device.sm() {
            ..SM_MIN => 0,
            _ => device.shared_max().saturating_sub(SHARED_BYTES as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_there_is_room_for() {
        const AT: u32 = KERNEL_TILES_AT;
        let within = |bytes: u32, tile_kib: u32| Tiles::within(bytes, tile_kib << 10);
        // Hopper and data-centre Blackwell, consumer Blackwell, and what has no engine.
        assert_eq!(within(225 << 10, 16), Tiles { tile_bytes: 16 << 10, shared_bytes: AT + 14 * (16 << 10) });
        assert_eq!(within(97 << 10, 16), Tiles { tile_bytes: 16 << 10, shared_bytes: AT + 6 * (16 << 10) });
        assert_eq!(within(225 << 10, 1).shared_bytes, AT + (31 << 10));
        assert_eq!([within(225 << 10, 0), within(0, 16), within(16 << 10, 16)], [Tiles::default(); 3]);
    }

    /// A kernel that lacks one stops, and says that its ranks are in different operations.
    #[test]
    fn reductions_of_many_ranks_have_short_tiles() {
        let longest = |nranks, reduced| {
            (1..=64).rev().find(|kib| Tiles::within(225 << 10, kib << 10).suffice(nranks, reduced))
        };
        let of = |reduced| [2, 3, 4, 8].map(|nranks| longest(nranks, reduced));
        assert_eq!(of(Some(DataType::U8)), [Some(64), Some(56), Some(44), Some(24)]);
        assert_eq!(of(None), [Some(64); 4]);
        let by_threads = |nranks, reduced| Tiles::default().suffice(nranks, reduced);
        assert!(by_threads(8, None) && by_threads(4, Some(DataType::F32)));
        assert!(!by_threads(8, Some(DataType::F32)));
    }
}
