//! Collectives on buffers that all ranks reach: nothing is staged.

use crate::conn::Conns;
use crate::gpu::{Among, AmongBlocks, BulkCopy, How, LINE_BYTES, Stop, Tile, Words};
use crate::prims::{Operands, Pre, end_tiles, first_meeting, meeting, move_tile};
use core::array::from_fn;
use oxccl_shared::abi::{Func, Rank, RankBuffers, SlotHeader};
use oxccl_shared::algo::symmetric::{Share, Stretch, Whose};
use oxccl_shared::sync::{fence_release, fence_release_loads};

/// Bytes that each thread copies to some outputs before the next ones: turns of the loop under a copy.
const THREAD_BYTES: usize = 128;

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
    /// The rank so many places after this one, at most all.
    #[inline(always)]
    fn ahead(&self, places: u32) -> Rank {
        let rank = self.rank.0 + places;
        Rank(if rank >= self.nranks { rank - self.nranks } else { rank })
    }

    #[inline(always)]
    fn of(&self, rank: Rank) -> RankBuffers {
        // SAFETY: its maker promised one for each rank.
        unsafe { *self.ranks.add(rank.index()) }
    }
}

/// Carries out a channel's share by bulk copies. `conns` lead to and from all peers, in rank order.
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
    let header = header(share, elem_bytes, tag);
    first_meeting(block, conns, header, || ())?;
    if block.loads() || block.stores() {
        block.see_peers();
    }
    // SAFETY: obligations 1 to 3; every rank has come, so its buffers are ready.
    let moved = unsafe { run_mine(block, buffers, share, elem_bytes) };
    end_tiles(block, moved)?;
    meeting(block, conns, header, fence_release)
}

/// Ranks that differ in the operation or its length do not touch each other's buffers.
#[inline(always)]
fn header(share: Share, elem_bytes: usize, tag: u32) -> SlotHeader {
    SlotHeader { tag, len_bytes: (share.count * elem_bytes) as u32 }
}

/// Who copies what a rank of an all-to-all sends to itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OwnPart {
    /// The blocks of the channels, each its part.
    Here,
    /// Other blocks: [`copy_own`].
    Elsewhere,
}

/// The same by loads and stores of the threads: sooner begun and ended than bulk copies, with more threads for the same speed, on buffers that
/// begin anywhere.
///
/// # Errors
/// [`Stop`].
///
/// # Safety
/// 1. As [`run`]'s first.
/// 2. If the function reduces, threads [can](can_reduce_by_threads) among so many ranks.
#[inline(always)]
pub unsafe fn run_by_threads<B: Words + AmongBlocks>(
    block: &B,
    conns: Conns<'_>,
    buffers: &Buffers,
    share: Share,
    elem_bytes: usize,
    tag: u32,
    own: OwnPart,
) -> Result<(), Stop> {
    let header = header(share, elem_bytes, tag);
    let reduces = share.func.is_reduction();
    // Where stretches begin takes divisions.
    let cut = || (share.whole().stretches(), share.whole().stretch_len() * elem_bytes);
    let (stretches, len_bytes) = first_meeting(block, conns, header, cut)?;
    let among = Among { index: share.channel, count: share.nchannels };
    let wanted = stretches.filter(|stretch| reduces || own == OwnPart::Here || !share.is_own(stretch));
    // SAFETY: obligations 1 and 2; every rank has come, so its buffers are ready.
    unsafe {
        match (reduces, buffers.nranks) {
            (false, _) => copy(block, among, buffers, wanted, len_bytes, elem_bytes),
            (true, 3) if B::INPUTS_MAX >= 3 => reduce::<B, 3>(block, among, buffers, wanted, elem_bytes),
            (true, 4) if B::INPUTS_MAX >= 4 => reduce::<B, 4>(block, among, buffers, wanted, elem_bytes),
            (true, _) => reduce::<B, 2>(block, among, buffers, wanted, elem_bytes),
        }
    }
    // What all threads have done is before what the meeting says.
    block.close(Ok(()))?;
    match share.func {
        // Nobody has written to another rank's memory.
        Func::ReduceScatter => meeting(block, conns, header, fence_release_loads),
        _ => meeting(block, conns, header, fence_release),
    }
}

/// Whether threads of such a block reduce the inputs of so many ranks.
#[inline(always)]
pub fn can_reduce_by_threads<B: AmongBlocks>(nranks: u32) -> bool {
    (2..=B::INPUTS_MAX).contains(&nranks)
}

/// Reduces the inputs of so many ranks, in rank order, to the outputs that the outcome belongs to.
///
/// # Safety
/// 1. As [`run_by_threads`], between its meetings; there are so many ranks.
#[inline(always)]
unsafe fn reduce<B: AmongBlocks, const N: usize>(
    block: &B,
    among: Among,
    buffers: &Buffers,
    stretches: impl Iterator<Item = Stretch>,
    elem_bytes: usize,
) {
    if !block.works() {
        return;
    }
    let how = How { pre: true, post: true, ..How::default() };
    for stretch in stretches {
        let (src_at, dst_at) = (stretch.src * elem_bytes, stretch.dst * elem_bytes);
        let from = |rank: usize| buffers.of(Rank(rank as u32)).src.wrapping_add(src_at);
        // Ours first, then from the next rank on, so that not all write to the same one.
        let to = |places: usize| match stretch.writes {
            Whose::One(_) if places > 0 => core::ptr::null_mut(),
            _ => buffers.of(buffers.ahead(places as u32)).dst.wrapping_add(dst_at),
        };
        let (inputs, outputs) = (from_fn::<_, N, _>(from), from_fn::<_, N, _>(to));
        // SAFETY: obligation 1: outputs are apart, and each is the place of its rank's input or apart from the inputs.
        unsafe { block.reduce_among(among, outputs, inputs, stretch.len * elem_bytes, how) };
    }
}

/// Copies what this rank sends to itself: it concerns nobody else, so there is nobody to meet.
///
/// # Safety
/// 1. This rank's buffers are as long as the function says, and readable and writable by this block.
#[inline(always)]
pub unsafe fn copy_own<B: AmongBlocks>(block: &B, buffers: &Buffers, share: Share, elem_bytes: usize) {
    // SAFETY: obligation 1.
    unsafe {
        let among = Among { index: share.channel, count: share.nchannels };
        let own = share.whole().stretches().filter(|stretch| share.is_own(stretch));
        copy(block, among, buffers, own, share.whole().stretch_len() * elem_bytes, elem_bytes);
    };
}

/// Copies stretches of so many bytes each.
///
/// # Safety
/// 1. As [`run_by_threads`], between its meetings, of the buffers of the ranks that these concern.
#[inline(always)]
unsafe fn copy<B: AmongBlocks>(
    block: &B,
    among: Among,
    buffers: &Buffers,
    stretches: impl Iterator<Item = Stretch> + Clone,
    len_bytes: usize,
    elem_bytes: usize,
) {
    if !block.works() {
        return;
    }
    // The first piece ends where a line of the outputs does, in which all stretches lie alike. None ends within an element.
    let first =
        stretches.clone().next().map_or(0, |stretch| place(buffers, &stretch, elem_bytes)) % LINE_BYTES;
    let mut skew = first - first % elem_bytes;
    let mut at = 0;
    // A piece of every stretch in turn: while stores are on the way to other ranks, those to our own memory go on.
    while at < len_bytes {
        let whole = THREAD_BYTES * block.threads() * among.count as usize;
        let len = (whole - skew).min(len_bytes - at);
        skew = 0;
        for stretch in stretches.clone() {
            let (src_at, dst_at) = (stretch.src * elem_bytes + at, stretch.dst * elem_bytes + at);
            // SAFETY: obligation 1: the piece is a part of the stretch.
            unsafe { copy_piece(block, among, buffers, stretch.writes, src_at, dst_at, len) };
        }
        at += len;
    }
}

/// Copies a piece of this rank's input to the outputs that it belongs to, two at a time.
///
/// # Safety
/// 1. As [`copy`]: the piece lies in this rank's input at `src_at`, and at `dst_at` in those outputs.
#[inline(always)]
unsafe fn copy_piece<B: AmongBlocks>(
    block: &B,
    among: Among,
    buffers: &Buffers,
    writes: Whose,
    src_at: usize,
    dst_at: usize,
    len: usize,
) {
    let Buffers { rank: me, nranks, .. } = *buffers;
    let from = buffers.of(me).src.wrapping_add(src_at);
    let to = |rank: Rank| buffers.of(rank).dst.wrapping_add(dst_at);
    if let Whose::One(rank) = writes {
        // SAFETY: obligation 1; nobody else writes there, and a block in place is not offered.
        return unsafe { block.copy_among(among, to(rank), core::ptr::null_mut(), from, len) };
    }
    // From the next rank on, so that not all write to the same one; our own is the last.
    let mut ahead = 1;
    while ahead <= nranks {
        let first = to(buffers.ahead(ahead));
        let second = if ahead < nranks { to(buffers.ahead(ahead + 1)) } else { core::ptr::null_mut() };
        let in_place = second.cast_const() == from;
        let second = if in_place { core::ptr::null_mut() } else { second };
        // SAFETY: obligation 1: outputs are apart, and our own is the input's place or apart from it.
        unsafe { block.copy_among(among, first, second, from, len) };
        ahead += 2;
    }
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
        let mut room = block.first_piece_bytes(place(buffers, &stretch, elem_bytes));
        while at < len_bytes {
            let len = room.min(len_bytes - at);
            room = tile;
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

/// Where a stretch begins in this rank's memory, which lies there as the other ranks' part of it does in theirs.
#[inline(always)]
fn place(buffers: &Buffers, stretch: &Stretch, elem_bytes: usize) -> usize {
    let RankBuffers { src, dst } = buffers.of(buffers.rank);
    match (stretch.reads, stretch.writes) {
        (Whose::All, Whose::One(_)) => src.addr() + stretch.src * elem_bytes,
        _ => dst.addr() + stretch.dst * elem_bytes,
    }
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
            Whose::All => (1..nranks + 1).for_each(|places| put(buffers.ahead(places))),
        }
    };
    let how = How { pre: is_all, post: is_all, ..How::default() };
    let operands = Operands { count, pre: if is_all { Pre::All } else { Pre::None }, how };
    let no_slots = Conns { send: &[], recv: &[] };
    // SAFETY: obligation 1: 16-byte alignment is obligation 2 of `run`.
    unsafe { move_tile(block, no_slots, operands, len, source, store) }
}
