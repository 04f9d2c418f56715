//! Collectives on buffers that all ranks reach: nothing is staged.

use crate::conn::Conns;
use crate::gpu::{BulkCopy, How, Stop, Tile, Words};
use crate::prims::{Operands, Pre, end_tiles, meeting, move_tile};
use oxccl_shared::abi::{Rank, RankBuffers, SlotHeader};
use oxccl_shared::algo::symmetric::{Share, Stretch, Whose};

/// The buffers of all ranks, by rank.
///
/// The schedule says which rank reads an element of an input and which writes one of an output. Both happen while all ranks are between
/// their two meetings.
#[derive(Clone, Copy)]
pub struct Buffers {
    /// The first rank's.
    pub ranks: *const RankBuffers,
    /// This rank.
    pub rank: Rank,
    /// Ranks.
    pub nranks: u32,
}

impl Buffers {
    #[inline(always)]
    fn of(&self, rank: Rank) -> RankBuffers {
        // SAFETY: its maker promised one for each rank.
        unsafe { *self.ranks.add(rank.index()) }
    }
}

/// Carries out a channel's share. `conns` lead to and from all peers, in rank order.
///
/// # Errors
/// [`Stop`].
///
/// # Safety
/// 1. `buffers.ranks` has an entry for each rank, whose buffers this GPU reaches and which are as long as the function says.
/// 2. All of them begin at multiples of 16 bytes, and so does every block of a rank in them; `share.grain_elems` are whole multiples of 16
///    bytes.
/// 3. An element has `elem_bytes`; the block's pre-operation is that of all ranks.
#[inline(always)]
pub unsafe fn run<B: BulkCopy + Words>(
    block: &B,
    conns: Conns<'_>,
    buffers: &Buffers,
    share: Share,
    elem_bytes: usize,
    tag: u32,
) -> Result<(), Stop> {
    // Ranks that differ in the operation or its length do not touch each other's buffers.
    let header = SlotHeader { tag, len_bytes: (share.count * elem_bytes) as u32 };
    meeting(block, conns, header)?;
    if block.loads() || block.stores() {
        block.see_peers();
    }
    // SAFETY: obligations 1 to 3; every rank has come, so its buffers are ready.
    let moved = unsafe { run_mine(block, buffers, share, elem_bytes) };
    end_tiles(block, moved)?;
    meeting(block, conns, header)
}

/// # Safety
/// 1. As [`run`], between its meetings.
#[inline(always)]
unsafe fn run_mine<B: BulkCopy>(
    block: &B,
    buffers: &Buffers,
    share: Share,
    elem_bytes: usize,
) -> Result<(), Stop> {
    if !(block.loads() || block.combines() || block.stores()) {
        return Ok(());
    }
    let tile = block.tile_bytes();
    for stretch in share.stretches() {
        let len_bytes = stretch.len * elem_bytes;
        let mut at = 0;
        while at < len_bytes {
            let len = tile.min(len_bytes - at);
            // SAFETY: obligation 1: the piece is a part of the stretch.
            let moved = unsafe { run_piece(block, buffers, &stretch, elem_bytes, at, len) };
            if moved.is_err() {
                block.stop();
                return moved;
            }
            at += len;
        }
    }
    Ok(())
}

/// `len` bytes of a stretch from byte `at` on.
///
/// # Safety
/// 1. As [`run_mine`].
#[inline(always)]
unsafe fn run_piece<B: BulkCopy>(
    block: &B,
    buffers: &Buffers,
    stretch: &Stretch,
    elem_bytes: usize,
    at: usize,
    len: usize,
) -> Result<(), Stop> {
    let Buffers { rank: me, nranks, .. } = *buffers;
    let (count, is_all) = match stretch.reads {
        Whose::All => (nranks as usize, true),
        Whose::One(_) => (1, false),
    };
    let (src_at, dst_at) = (stretch.src * elem_bytes + at, stretch.dst * elem_bytes + at);
    let source = |k: usize| {
        let rank = if is_all { Rank(k as u32) } else { me };
        (buffers.of(rank).src.wrapping_add(src_at), false)
    };
    let store = |tile: Tile, is_combined: bool| {
        let put = |rank: Rank| {
            let RankBuffers { src, dst } = buffers.of(rank);
            let (from, to) = (src.wrapping_add(src_at), dst.wrapping_add(dst_at));
            if rank != me || is_combined || from != to.cast_const() {
                // SAFETY: obligation 1; the tile is loaded and combined.
                unsafe { block.store(tile, to, len, false) };
            }
        };
        match stretch.writes {
            Whose::One(rank) => put(rank),
            // From the next rank on, so that not all write to the same one.
            Whose::All => (0..nranks).for_each(|ahead| {
                let rank = me.0 + ahead + 1;
                put(Rank(if rank >= nranks { rank - nranks } else { rank }));
            }),
        }
    };
    let how = How { pre: is_all, post: is_all, ..How::default() };
    let operands = Operands { count, pre: if is_all { Pre::All } else { Pre::None }, how };
    let no_slots = Conns { send: &[], recv: &[] };
    // SAFETY: obligation 1: 16-byte alignment is obligation 2 of `run`.
    unsafe { move_tile(block, no_slots, operands, len, source, store) }
}
