//! Long messages between GPUs, straight into the receiver's buffer: one copy instead of two through slots, and nothing to do for the receiver.
//!
//! A sender that may reach its receiver's memory asks where the message goes (`oxccl_shared::abi::Ask`). Receivers answer always, so nothing
//! about buffers has to be the same at both ends. The copy is that of symmetric kernels, from tile to tile (`crate::prims::bulk`).
//!
//! ```text
//! sender                                     receiver
//! storer    asks, waits for the answer       first worker   answers
//! all       a barrier: where to              all            a barrier: whether the message has come
//! loader    loads tiles
//! storer    stores them; all are complete;
//!           publishes the message            first worker   (before its barrier) waits for it
//! ```

use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Block, BulkCopy, End, How, Stop, Tile, wait_for};
use crate::prims::{Operands, Pre, end_tiles, move_tile};
use core::ops::Range;
use oxccl_shared::abi::{KernelMessage, Protocol, SlotHeader};

/// Sends a part of a message, if the receiver says where to. Returns whether it did; otherwise the part goes by slots. All threads of the block
/// call it.
///
/// # Errors
/// [`Stop`], on all threads.
///
/// # Safety
/// 1. `conns` holds the message's connection alone. The buffer is readable, and it and the part begin at multiples of 16 bytes.
/// 2. An address other than 0 that the receiver answers is where this GPU reaches a buffer as long as the message.
/// 3. The block's tiles are open.
#[inline(always)]
pub unsafe fn send_part<B: BulkCopy>(
    block: &B,
    conns: Conns<'_>,
    message: &KernelMessage,
    part: Range<usize>,
) -> Result<bool, Stop> {
    let conn = &conns.send[0];
    let asked = if block.stores() { ask(block, conn, message.tag) } else { Ok(0) };
    let to = asked.unwrap_or_default();
    block.close(asked.map(drop))?;
    if !any(block, to != 0) {
        return Ok(false);
    }
    let (src, dst) = (message.buffer.wrapping_add(part.start), to as usize + part.start);
    // SAFETY: obligations 1 to 3; only the storer uses the address, which it has been told.
    let moved = unsafe { push(block, src, core::ptr::with_exposed_provenance_mut(dst), part.len()) };
    if block.stores() && moved.is_ok() {
        block.wait_stored();
        block.show_peers();
        conn.publish(arrival(message, &part));
        conn.advance();
    }
    end_tiles(block, moved)?;
    Ok(true)
}

/// Receives a part of a message, if the sender asks where to, and it can be told. Returns whether it did; otherwise the part comes by slots. All
/// threads of the block call it.
///
/// # Errors
/// [`Stop`], on all threads.
#[inline(always)]
pub fn receive_part<B: Block>(
    block: &B,
    conns: Conns<'_>,
    message: &KernelMessage,
    part: Range<usize>,
) -> Result<bool, Stop> {
    let came = if block.leads() { answer(block, &conns.recv[0], message, &part) } else { Ok(false) };
    block.close(came.map(drop))?;
    Ok(any(block, came == Ok(true)))
}

/// What is published when a part lies in the receiver's buffer.
#[inline(always)]
fn arrival(message: &KernelMessage, part: &Range<usize>) -> SlotHeader {
    SlotHeader { tag: message.tag, len_bytes: part.len() as u32 }
}

/// Storer: where the receiver's buffer is; 0 if that cannot be said.
#[inline(always)]
fn ask<B: BulkCopy>(block: &B, conn: &SendConn, tag: u32) -> Result<u64, Stop> {
    wait_for(block, conn, || conn.poll_credit(Protocol::Simple, true).then_some(()))?;
    conn.publish(SlotHeader::ask(tag));
    conn.advance();
    // Nothing follows the question before its answer, so drained means answered.
    wait_for(block, conn, || conn.is_drained().then_some(()))?;
    // What the receiver has done with its buffer comes before our stores.
    block.see_peers();
    Ok(conn.asked().address.load_relaxed())
}

/// First worker: answers, if the sender asks, and waits for the message if it was told where to.
#[inline(always)]
fn answer<B: Block>(
    block: &B,
    conn: &RecvConn,
    message: &KernelMessage,
    part: &Range<usize>,
) -> Result<bool, Stop> {
    let found = wait_for(block, conn, || conn.poll())?;
    if found != SlotHeader::ask(message.tag) {
        // A slot, of this message or of another operation: who takes it looks.
        return Ok(false);
    }
    conn.ask().address.store_relaxed(message.reached);
    conn.release();
    conn.advance();
    if message.reached == 0 {
        return Ok(false);
    }
    let (expected, found) = (arrival(message, part), wait_for(block, conn, || conn.poll())?);
    if found != expected {
        return Err(block.refuse(conn.wait(), expected, found));
    }
    conn.release();
    conn.advance();
    Ok(true)
}

/// Copies by the loader and the storer, tile by tile.
///
/// # Safety
/// 1. `src` is readable, and `dst` is writable by the storer; both begin at multiples of 16 bytes. Tiles are open.
#[inline(always)]
unsafe fn push<B: BulkCopy>(block: &B, src: *const u8, dst: *mut u8, len_bytes: usize) -> Result<(), Stop> {
    let operands = Operands { count: 1, pre: Pre::None, how: How::default() };
    let mut at = 0;
    while at < len_bytes {
        let len = block.tile_bytes().min(len_bytes - at);
        let source = |_| (src.wrapping_add(at), false);
        let store = |tile: Tile, _: bool| {
            // SAFETY: obligation 1; the tile is loaded.
            unsafe { block.store(tile, dst.wrapping_add(at), len, false) };
        };
        let no_slots = Conns { send: &[], recv: &[] };
        // SAFETY: obligation 1.
        unsafe { move_tile(block, no_slots, operands, len, source, store)? };
        at += len;
    }
    Ok(())
}

/// A barrier of all threads of the block; whether one of them said so. Nobody stops here.
#[inline(always)]
fn any<B: Block>(block: &B, mine: bool) -> bool {
    block.close(if mine { Err(Stop) } else { Ok(()) }).is_err()
}
