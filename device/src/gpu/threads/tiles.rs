//! Where a thread block's tiles and their barriers are.
//!
//! ```text
//! dynamic shared memory   barriers: Empty, Loaded, Gathered, Combined of each tile or turn   flag of a stop   at KERNEL_TILES_AT: tiles
//! ```

use crate::gpu::Stage;
use oxccl_shared::abi::{KERNEL_TILES_AT, KERNEL_TILES_MAX};

const BARRIER_BYTES: u32 = 8;
const STAGES: u32 = 4;
/// Of a stop.
pub(super) const FLAG_AT: u32 = KERNEL_TILES_AT - 4;
const _: () = assert!(KERNEL_TILES_MAX * STAGES * BARRIER_BYTES <= FLAG_AT);

/// Where the tiles are.
#[derive(Clone, Copy, Default)]
pub struct Tiles {
    pub(super) base: u32,
    pub(super) tile_bytes: u32,
    pub(super) count: u32,
    /// Threads before the combiners, groups of these, and the threads of one.
    pub(super) skipped: u32,
    pub(super) groups: u32,
    pub(super) group_threads: u32,
}

impl Tiles {
    #[inline(always)]
    pub(super) fn barrier(&self, stage: Stage, index: u32) -> u32 {
        self.base + (index * STAGES + stage as u32) * BARRIER_BYTES
    }

    #[inline(always)]
    pub(super) fn at(&self, index: u32) -> u32 {
        self.base + KERNEL_TILES_AT + index * self.tile_bytes
    }
}
