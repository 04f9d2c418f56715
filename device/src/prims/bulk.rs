//! Primitives over Simple by bulk copies: the same slots, headers and credits, moved through tiles.
//!
//! A slice is cut into tiles. The loader loads a tile of every operand, in reduction order; combiners leave the outcome in the first of
//! them; the storer stores that one to all outputs. A slot is published when its last store is complete, some stores later: the
//! pipeline does not run dry between slots. Whoever has to wait publishes first, since its peer may wait for just that.

use super::{Proto, Slice};
use crate::conn::{Conns, RecvConn};
use crate::gpu::{BulkCopy, End, How, NO_TILE, STORES_READING, STORES_RECENT, Stage, Stop, Tile};
use oxccl_shared::abi::{Protocol, SlotHeader};

/// See [`oxccl_shared::proto::simple`].
pub struct Bulk;

impl<B: BulkCopy> Proto<B> for Bulk {
    const PROTOCOL: Protocol = Protocol::Simple;
    const EACH_LOOKS: bool = false;

    #[inline]
    fn poll_header(conn: &RecvConn) -> Option<SlotHeader> {
        conn.poll()
    }

    #[inline(always)]
    unsafe fn run(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop> {
        if !(block.loads() || block.combines() || block.stores()) {
            return Ok(());
        }
        // SAFETY: obligation 1 is passed on; roles wait for slots and credits themselves.
        let moved = unsafe { Self::transfer(block, conns, slice) };
        if moved.is_err() {
            block.stop();
        }
        moved
    }

    #[inline(always)]
    unsafe fn transfer(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop> {
        if block.loads() {
            for &index in slice.recv() {
                let conn = &conns.recv[index as usize];
                let found = wait_for_peer(block, conns, conn, || conn.poll())?;
                if found != slice.header {
                    return Err(block.refuse(conn.wait(), slice.header, found));
                }
            }
            block.see_peers();
        }
        if block.stores() {
            for &index in slice.send() {
                let conn = &conns.send[index as usize];
                wait_for_peer(block, conns, conn, || conn.poll_credit(Protocol::Simple, true).then_some(()))?;
            }
            // What the peers have read by now, later stores overwrite.
            block.see_peers();
        }
        let (len, tile_bytes) = (slice.header.len_bytes as usize, block.tile_bytes());
        let mut at = 0;
        loop {
            let piece = Piece { at, len: tile_bytes.min(len - at), is_last: len - at <= tile_bytes };
            // SAFETY: obligation 1: the piece is a part of the slice.
            unsafe { run_piece(block, conns, slice, piece)? };
            if piece.is_last {
                break;
            }
            at += piece.len;
        }
        Self::finish(block, conns, slice);
        Ok(())
    }

    #[inline(always)]
    fn finish(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
        if block.loads() {
            for &index in slice.recv() {
                conns.recv[index as usize].advance();
            }
        }
        if block.stores() && !slice.send().is_empty() {
            let pipe = block.pipe();
            if pipe.stored.get().1 != 0 {
                // Slices of fewer tiles than stores are let go on.
                publish_all(block, conns);
            }
            let mask = slice.send().iter().fold(0, |mask, index| mask | 1 << index);
            pipe.stored.set((slice.header, mask));
            pipe.recent.set(0);
            for &index in slice.send() {
                conns.send[index as usize].advance();
            }
        }
    }

    #[inline(always)]
    fn close(block: &B, conns: Conns<'_>, ran: Result<(), Stop>) -> Result<(), Stop> {
        close_tiles(block, conns, ran)
    }
}

/// Ends the use of tiles: everything asked for is complete on all threads, for whom one of them tells.
#[inline(always)]
fn close_tiles<B: BulkCopy>(block: &B, conns: Conns<'_>, ran: Result<(), Stop>) -> Result<(), Stop> {
    if block.stores() {
        match ran {
            Ok(()) => publish_all(block, conns),
            Err(Stop) => block.wait_stored(),
        }
    }
    let ended = block.close(ran);
    // Where all went well the storer has seen every load's end.
    if block.loads() && ended.is_err() {
        settle(block);
    }
    ended
}

/// The same where tiles were moved between buffers alone: peers may be told.
#[inline(always)]
pub(crate) fn end_tiles<B: BulkCopy>(block: &B, ran: Result<(), Stop>) -> Result<(), Stop> {
    if block.stores() && ran.is_ok() {
        block.wait_stored();
        block.show_peers();
    }
    close_tiles(block, Conns { send: &[], recv: &[] }, ran)
}

/// A tile's worth of a slice.
#[derive(Clone, Copy)]
struct Piece {
    at: usize,
    len: usize,
    is_last: bool,
}

/// One tile of each operand, from the sources to the outputs.
///
/// # Safety
/// 1. As [`Proto::transfer`], for the piece.
#[inline(always)]
unsafe fn run_piece<B: BulkCopy>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    piece: Piece,
) -> Result<(), Stop> {
    let Piece { at, len, is_last } = piece;
    let (recv, own) = (slice.recv(), slice.action.src);
    let own_at = if own { slice.src_position.min(recv.len()) } else { usize::MAX };
    let how = How { pre: own, post: slice.action.finish, stream: slice.stream, stream2: false };
    let pre = if own { Pre::One(own_at) } else { Pre::None };
    let operands = Operands { count: recv.len() + usize::from(own), pre, how };
    let source = |k: usize| match k == own_at {
        true => (slice.src.wrapping_add(at), false),
        // Slots are whole lines.
        false => {
            let conn = &conns.recv[recv[k - usize::from(k > own_at)] as usize];
            (conn.slot(Protocol::Simple).wrapping_add(at).cast_const(), true)
        }
    };
    let store = |tile: Tile, is_combined: bool| {
        let stays = slice.dst.cast_const() == slice.src && own && !is_combined;
        if slice.action.dst && !stays {
            // SAFETY: obligation 1; the tile is loaded and combined.
            unsafe { block.store(tile, slice.dst.wrapping_add(at), len, false) };
        }
        for &index in slice.send() {
            let slot = conns.send[index as usize].slot(Protocol::Simple);
            // SAFETY: as above; there is a credit, and slots are whole lines.
            unsafe { block.store(tile, slot.wrapping_add(at), len, true) };
        }
    };
    // SAFETY: obligation 1: sources and outputs are those of the piece.
    unsafe { move_tile(block, conns, operands, len, source, store)? };
    if block.stores() && is_last {
        // All loads of the slice are complete.
        for &index in recv {
            conns.recv[index as usize].release();
        }
    }
    Ok(())
}

/// What is moved or combined.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    /// How many.
    pub count: usize,
    /// Those that the pre-operation applies to, if `how` says that there are any.
    pub pre: Pre,
    /// How they are treated.
    pub how: How,
}

/// Operands of which the pre-operation was not applied yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pre {
    /// None.
    None,
    /// Our own.
    One(usize),
    /// All: inputs of several ranks.
    All,
}

impl Pre {
    #[inline(always)]
    fn has(self, k: usize) -> bool {
        match self {
            Pre::None => false,
            Pre::One(at) => at == k,
            Pre::All => true,
        }
    }
}

/// Moves a piece of at most a tile: `source` says where operand `k` begins and whether it can be read to the next multiple of 16; `store`
/// asks for the stores of the tile with the outcome, which it is told to be combined or just moved.
///
/// # Safety
/// 1. Sources are aligned to 16 and readable for `len` bytes until a later [`publish_all`] of the storer; outputs are writable as long.
#[inline(always)]
pub(crate) unsafe fn move_tile<B: BulkCopy>(
    block: &B,
    conns: Conns<'_>,
    operands: Operands,
    len: usize,
    source: impl Fn(usize) -> (*const u8, bool),
    store: impl FnOnce(Tile, bool),
) -> Result<(), Stop> {
    let (pipe, count) = (block.pipe(), block.tiles());
    let Operands { count: operands, pre: with_pre, how } = operands;
    let is_combined = operands > 1 || block.changes(how);
    let first = pipe.next.get();
    // By value: what is reached through one of two references lies in a GPU's local memory.
    let turn = if is_combined { pipe.combined.get() } else { pipe.moved.get() };
    if block.loads() {
        let stage = if is_combined { Stage::Gathered } else { Stage::Loaded };
        let mut tile = first;
        for k in 0..operands {
            wait_for(block, conns, Stage::Empty, tile)?;
            let (from, whole) = source(k);
            pipe.is_torn.set(true);
            // SAFETY: obligation 1.
            unsafe { block.load(tile, (stage, turn), from, len, whole) };
            tile = tile.next(count);
        }
        block.asked((stage, turn));
        pipe.is_torn.set(false);
    }
    if block.combines() && is_combined && block.combines_turn(turn) {
        wait_for(block, conns, Stage::Gathered, turn)?;
        let mut tile = first;
        for k in 0..operands {
            let pre = with_pre.has(k);
            let post = k + 1 == operands && how.post;
            // SAFETY: these tiles are loaded, each with this piece of an operand.
            unsafe {
                match k {
                    0 if operands == 1 || pre => block.map_tile(first, len, How { pre, post, ..how }),
                    0 => {}
                    _ => block.combine_tile(first, tile, len, How { pre, post, ..how }),
                }
            }
            tile = tile.next(count);
        }
        block.combined(turn);
    }
    if block.stores() {
        wait_for(block, conns, if is_combined { Stage::Combined } else { Stage::Loaded }, turn)?;
        let mut tile = first;
        for _ in 1..operands {
            tile = tile.next(count);
            block.free(tile.index);
        }
        store(first, is_combined);
        block.commit();
        after_store(block, conns, first.index);
    }
    pipe.next.set((0..operands).fold(first, |tile, _| tile.next(count)));
    let next_turn = turn.next(count);
    if is_combined {
        pipe.combined.set(next_turn);
    } else {
        pipe.moved.set(next_turn);
    }
    Ok(())
}

/// Storer: a store of this tile was asked for; what this makes old is published and freed.
#[inline(always)]
fn after_store<B: BulkCopy>(block: &B, conns: Conns<'_>, index: u32) {
    let pipe = block.pipe();
    let reading = pipe.reading.get();
    let oldest = reading >> (8 * (STORES_READING - 1)) & NO_TILE;
    pipe.reading.set(reading << 8 | u64::from(index));
    if oldest != NO_TILE {
        block.wait_read();
        block.free(oldest as u32);
    }
    if pipe.stored.get().1 != 0 {
        pipe.recent.set(pipe.recent.get() + 1);
        if pipe.recent.get() >= STORES_RECENT {
            block.wait_recent();
            publish(block, conns);
        }
    }
}

/// Storer: publishes the slot whose stores are complete.
#[inline(always)]
fn publish<B: BulkCopy>(block: &B, conns: Conns<'_>) {
    let (header, mut mask) = block.pipe().stored.get();
    block.pipe().stored.set((header, 0));
    block.show_peers();
    while mask != 0 {
        conns.send[mask.trailing_zeros() as usize].publish(header);
        mask &= mask - 1;
    }
}

/// Storer: waits for all stores, publishes what they filled and frees their tiles.
#[inline(always)]
fn publish_all<B: BulkCopy>(block: &B, conns: Conns<'_>) {
    let pipe = block.pipe();
    let mut reading = pipe.reading.replace(u64::MAX);
    if reading == u64::MAX && pipe.stored.get().1 == 0 {
        return;
    }
    block.wait_stored();
    for _ in 0..STORES_READING {
        if reading & NO_TILE != NO_TILE {
            block.free((reading & NO_TILE) as u32);
        }
        reading = reading >> 8 | NO_TILE << 56;
    }
    if pipe.stored.get().1 != 0 {
        publish(block, conns);
    }
}

/// Waits for other threads of the block, which see a stop themselves.
#[inline(always)]
fn wait_for<B: BulkCopy>(block: &B, conns: Conns<'_>, stage: Stage, turn: Tile) -> Result<(), Stop> {
    if block.has_come(stage, turn, false) {
        return Ok(());
    }
    if block.stores() {
        publish_all(block, conns);
    }
    while !block.has_come(stage, turn, true) {
        if block.has_stopped() {
            return Err(Stop);
        }
    }
    Ok(())
}

/// As [`crate::gpu::wait_for`], while other threads of the block may stop.
#[inline(always)]
fn wait_for_peer<B: BulkCopy, T>(
    block: &B,
    conns: Conns<'_>,
    end: &impl End,
    mut poll: impl FnMut() -> Option<T>,
) -> Result<T, Stop> {
    let mut polls = 0u32;
    loop {
        if let Some(found) = poll() {
            return Ok(found);
        }
        if polls == 0 && block.stores() {
            publish_all(block, conns);
        }
        if block.has_stopped() {
            return Err(Stop);
        }
        polls = polls.saturating_add(1);
        block.idle_at(end, polls)?;
    }
}

/// Loader: waits until everything asked for has been loaded. The block's memory belongs to another block afterwards.
#[inline(always)]
fn settle<B: BulkCopy>(block: &B) {
    let pipe = block.pipe();
    if pipe.is_torn.replace(false) {
        // Nobody waits for this piece any more.
        let torn = pipe.combined.get();
        block.asked((Stage::Gathered, torn));
        pipe.combined.set(torn.next(block.tiles()));
    }
    settle_turns(block, Stage::Loaded, pipe.moved.get());
    settle_turns(block, Stage::Gathered, pipe.combined.get());
}

/// Loader: waits for all turns before the next one.
#[inline(always)]
fn settle_turns<B: BulkCopy>(block: &B, stage: Stage, next: Tile) {
    for index in 0..block.tiles() {
        // The last turn of each; one that was never there passes for one of an earlier round.
        let odd = next.odd ^ (index >= next.index);
        while !block.has_come(stage, Tile { index, odd }, true) {}
    }
}
