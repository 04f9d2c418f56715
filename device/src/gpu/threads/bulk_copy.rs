//! A thread block as a [`BulkCopy`]: its tiles are made, who has which role, and the operator between tiles.

use super::arith;
use super::block::GpuBlock;
use super::bulk::Variant;
use super::sweep::repeat;
use super::tiles::{FLAG_AT, Tiles};
use crate::gpu::{Block, BulkCopy, CopyEngine, How, KernelMachine, Pack, Pipe, Stage, Tile};
use oxccl_shared::abi::{KERNEL_TILES_AT, KERNEL_TILES_MAX};
use oxccl_shared::reduce::{CombineKind, Element};

const PACK_BYTES: u32 = 16;
/// Packs of one tile that a combiner keeps in flight.
const IN_FLIGHT: usize = 4;
/// Warps that combine, behind the loader's, in groups of so many that take turns. A piece takes a group some 0.9 us, of which little is
/// arithmetic: it waits, sweeps and tells.
const COMBINER_WARPS: u32 = 8;
const GROUP_WARPS: u32 = 2;

impl<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool> GpuBlock<M, T, POSTER, SHIFTS> {
    /// Makes the block's tiles of so many bytes, if the launch has memory for `operands` and those being stored, and threads for all
    /// roles. All threads call it, once.
    #[inline(always)]
    pub fn open_tiles(&mut self, tile_bytes: u32, operands: u32) -> bool {
        if !M::Engine::PRESENT || !POSTER || tile_bytes == 0 {
            return false;
        }
        let (base, bytes) = M::Engine::memory();
        let count = (bytes.saturating_sub(KERNEL_TILES_AT) / tile_bytes).min(KERNEL_TILES_MAX);
        let warps = self.threads() as u32 / M::WARP_THREADS;
        if count <= operands || warps < 2 || self.machine().block_threads() < count {
            return false;
        }
        let combiners = (warps - 1).min(COMBINER_WARPS);
        let group_warps = combiners.min(GROUP_WARPS);
        let (groups, group_threads) = (combiners / group_warps, group_warps * M::WARP_THREADS);
        let tiles = Tiles { base, tile_bytes, count, skipped: M::WARP_THREADS, groups, group_threads };
        let index = self.machine().thread_index();
        if index < count {
            // SAFETY: this thread makes them before anybody uses them; there are as many threads.
            unsafe {
                M::Engine::new_barrier(tiles.barrier(Stage::Empty, index), 1);
                M::Engine::new_barrier(tiles.barrier(Stage::Loaded, index), 1);
                M::Engine::new_barrier(tiles.barrier(Stage::Gathered, index), 1);
                M::Engine::new_barrier(tiles.barrier(Stage::Combined, index), group_warps);
            }
            M::Engine::show_barriers();
        }
        if self.leads() {
            // SAFETY: the flag's place.
            unsafe { M::Engine::store_flag(base + FLAG_AT, 0) };
        }
        self.tiles = tiles;
        self.machine().sync_all();
        true
    }
}

impl<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool> BulkCopy
    for GpuBlock<M, T, POSTER, SHIFTS>
{
    #[inline(always)]
    fn tile_bytes(&self) -> usize {
        self.tiles.tile_bytes as usize
    }

    #[inline(always)]
    fn tiles(&self) -> u32 {
        self.tiles.count
    }

    #[inline(always)]
    fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    #[inline(always)]
    fn combines(&self) -> bool {
        let Tiles { skipped, groups, group_threads, .. } = self.tiles;
        (self.thread() as u32).wrapping_sub(skipped) < groups * group_threads
    }

    #[inline(always)]
    fn combines_turn(&self, turn: Tile) -> bool {
        let Tiles { skipped, groups, group_threads, .. } = self.tiles;
        turn.index % groups == (self.thread() as u32).wrapping_sub(skipped) / group_threads
    }

    #[inline(always)]
    fn changes(&self, how: How) -> bool {
        let Variant { pre, post, .. } = self.variant(how);
        pre || post
    }

    #[inline(always)]
    fn has_come(&self, stage: Stage, turn: Tile, patience: bool) -> bool {
        // A tile is empty for its first use before anybody has freed it.
        let parity = u32::from(turn.odd ^ (stage == Stage::Empty));
        // SAFETY: a barrier; nobody is more than a round ahead, since tiles are used again when all are done with them.
        unsafe { M::Engine::has_ended(self.tiles.barrier(stage, turn.index), parity, patience) }
    }

    #[inline(always)]
    fn has_stopped(&self) -> bool {
        // SAFETY: the flag's place.
        unsafe { M::Engine::load_flag(self.tiles.base + FLAG_AT) != 0 }
    }

    #[inline(always)]
    fn stop(&self) {
        // SAFETY: the flag's place.
        unsafe { M::Engine::store_flag(self.tiles.base + FLAG_AT, 1) };
    }

    #[inline(always)]
    fn see_peers(&self) {
        M::Engine::fence();
    }

    #[inline(always)]
    unsafe fn load(&self, tile: Tile, piece: (Stage, Tile), src: *const u8, len_bytes: usize, whole: bool) {
        let (to, barrier) = (self.tiles.at(tile.index), self.tiles.barrier(piece.0, piece.1.index));
        let (bytes, rest) = cut(len_bytes, whole);
        if rest > 0 {
            for at in bytes..bytes + rest {
                // SAFETY: obligations 1 and 2.
                unsafe { M::Engine::store_byte(to + at, src.add(at as usize).read()) };
            }
            M::Engine::fence_own();
        }
        if bytes > 0 {
            // SAFETY: obligations 1 and 2; the phase lasts until `asked`.
            unsafe {
                M::Engine::expect(barrier, bytes);
                M::Engine::load(to, src.addr(), bytes, barrier);
            }
        }
    }

    #[inline(always)]
    fn asked(&self, (stage, turn): (Stage, Tile)) {
        // SAFETY: the loader arrives once in a phase.
        unsafe { M::Engine::arrive(self.tiles.barrier(stage, turn.index)) };
    }

    #[inline(always)]
    unsafe fn map_tile(&self, tile: Tile, len_bytes: usize, how: How) {
        let Variant { pre, post, .. } = self.variant(how);
        let at = self.tiles.at(tile.index);
        let sweep = self.sweep(at, at, len_bytes);
        // SAFETY: obligation 1.
        unsafe {
            if pre {
                transform::<M, T, true>(sweep, self.arg.scalar_bits);
            }
            if post {
                transform::<M, T, false>(sweep, u64::from(self.arg.divisor));
            }
        }
    }

    #[inline(always)]
    unsafe fn combine_tile(&self, tile: Tile, operand: Tile, len_bytes: usize, how: How) {
        let Variant { kind, pre, post } = self.variant(how);
        let sweep = self.sweep(self.tiles.at(tile.index), self.tiles.at(operand.index), len_bytes);
        const SUM: u8 = CombineKind::Sum as u8;
        // SAFETY: obligation 1 in every arm.
        unsafe {
            match (kind, pre, post) {
                (CombineKind::Sum, false, false) => reduce::<M, T, SUM, 0>(sweep, 0),
                (CombineKind::Sum, true, _) => reduce::<M, T, SUM, 1>(sweep, self.arg.scalar_bits),
                (CombineKind::Sum, false, true) => reduce::<M, T, SUM, 2>(sweep, u64::from(self.arg.divisor)),
                (CombineKind::Prod, ..) => reduce::<M, T, { CombineKind::Prod as u8 }, 0>(sweep, 0),
                (CombineKind::Max, ..) => reduce::<M, T, { CombineKind::Max as u8 }, 0>(sweep, 0),
                (CombineKind::Min, ..) => reduce::<M, T, { CombineKind::Min as u8 }, 0>(sweep, 0),
            }
        }
    }

    #[inline(always)]
    fn combined(&self, turn: Tile) {
        // SAFETY: every warp of the turn's combiners arrives once in a phase.
        unsafe { M::Engine::arrive_as_warp(self.tiles.barrier(Stage::Combined, turn.index)) };
    }

    #[inline(always)]
    unsafe fn store(&self, tile: Tile, dst: *mut u8, len_bytes: usize, whole: bool) {
        let from = self.tiles.at(tile.index);
        let (bytes, rest) = cut(len_bytes, whole);
        if bytes > 0 {
            // SAFETY: obligations 1 and 2.
            unsafe { M::Engine::store(dst.addr(), from, bytes) };
        }
        for at in bytes..bytes + rest {
            // SAFETY: obligations 1 and 2.
            unsafe { dst.add(at as usize).write(M::Engine::load_byte(from + at)) };
        }
    }

    #[inline(always)]
    fn commit(&self) {
        M::Engine::commit();
    }

    #[inline(always)]
    fn wait_read(&self) {
        M::Engine::wait_read();
    }

    #[inline(always)]
    fn wait_recent(&self) {
        M::Engine::wait_recent();
    }

    #[inline(always)]
    fn wait_stored(&self) {
        M::Engine::wait_stored();
    }

    #[inline(always)]
    fn show_peers(&self) {
        M::Engine::fence();
    }

    #[inline(always)]
    fn free(&self, index: u32) {
        // SAFETY: the storer arrives once in a phase.
        unsafe { M::Engine::arrive(self.tiles.barrier(Stage::Empty, index)) };
    }
}

/// The bytes that the engine moves of so many, and the bytes after these.
#[inline(always)]
fn cut(len_bytes: usize, whole: bool) -> (u32, u32) {
    let len = len_bytes as u32;
    let rest = len % PACK_BYTES;
    match (rest, whole) {
        (0, _) => (len, 0),
        (_, true) => (len - rest + PACK_BYTES, 0),
        (_, false) => (len - rest, rest),
    }
}

/// A combiner's share of two tiles.
#[derive(Clone, Copy)]
struct Sweep {
    /// Its first pack in the tile that is written, and in the other one.
    to: u32,
    from: u32,
    /// Where the first tile ends, and from pack to pack.
    end: u32,
    step: u32,
}

impl<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool> GpuBlock<M, T, POSTER, SHIFTS> {
    #[inline(always)]
    fn sweep(&self, to: u32, from: u32, len_bytes: usize) -> Sweep {
        let Tiles { skipped, group_threads, .. } = self.tiles;
        let mine = (self.thread() as u32 - skipped) % group_threads * PACK_BYTES;
        // The last pack may be ragged: what lies behind its elements is nobody's.
        let end = to + (len_bytes as u32).next_multiple_of(PACK_BYTES);
        Sweep { to: to + mine, from: from + mine, end, step: group_threads * PACK_BYTES }
    }
}

/// `to = pack(to, from)` of all packs.
///
/// # Safety
/// 1. The tiles are loaded, and the packs this thread's alone.
#[inline(always)]
unsafe fn each_pack<E: CopyEngine>(sweep: Sweep, pack: impl Fn(Pack, Pack) -> Pack) {
    let Sweep { mut to, mut from, end, step } = sweep;
    while to + (IN_FLIGHT as u32 - 1) * step < end {
        // As constants, or they are in local memory instead of registers.
        let mut loaded = [[[0; 2]; 2]; IN_FLIGHT];
        repeat!(IN_FLIGHT, i => {
            let ahead = i as u32 * step;
            // SAFETY: obligation 1; the last of these lies before the end.
            loaded[i] = unsafe { [E::load_pack(to + ahead), E::load_pack(from + ahead)] };
        });
        repeat!(IN_FLIGHT, i => {
            let [a, b] = loaded[i];
            // SAFETY: as above.
            unsafe { E::store_pack(to + i as u32 * step, pack(a, b)) };
        });
        to += IN_FLIGHT as u32 * step;
        from += IN_FLIGHT as u32 * step;
    }
    while to < end {
        // SAFETY: obligation 1.
        unsafe { E::store_pack(to, pack(E::load_pack(to), E::load_pack(from))) };
        to += step;
        from += step;
    }
}

/// Pre-multiplies (`PRE`) or divides all elements.
///
/// # Safety
/// 1. As [`each_pack`].
#[inline(never)]
unsafe fn transform<M: KernelMachine, T: Element, const PRE: bool>(sweep: Sweep, by: u64) {
    let word = arith::change::<M, T, PRE>(by);
    // SAFETY: obligation 1.
    unsafe { each_pack::<M::Engine>(sweep, |pack, _| pack.map(&word)) };
}

/// `EXTRA`: 1 pre-multiplies the second operand by `by`, 2 divides the result by it.
///
/// # Safety
/// 1. As [`each_pack`].
#[inline(never)]
unsafe fn reduce<M: KernelMachine, T: Element, const KIND: u8, const EXTRA: u8>(sweep: Sweep, by: u64) {
    let word = arith::reduction::<M, T, KIND, EXTRA, 2>(by);
    // SAFETY: obligation 1.
    unsafe { each_pack::<M::Engine>(sweep, |[a, b], [c, d]| [word([a, c]), word([b, d])]) };
}
