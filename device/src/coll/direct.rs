//! Long messages between GPUs, straight into the receiver's buffer: one copy instead of two through slots, and nothing to do for the receiver.
//!
//! A sender that may reach its receiver's memory asks where the message goes (`oxccl_shared::abi::Answer`). Receivers answer always, so nothing
//! about buffers has to be the same at both ends; who has a buffer that can be reached says so before it is asked. The copy is that of symmetric
//! kernels, from tile to tile (`crate::prims::bulk`).
//!
//! ```text
//! sender                                     receiver
//! loader    loads tiles
//! storer    asks, waits for the answer       first worker   answers, waits for the question
//! all       a barrier: whether it goes so    all            a barrier: whether the message has come
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
    let (conn, src, len) = (&conns.send[0], message.buffer.wrapping_add(part.start), part.len());
    // Wherever it goes: a loader that does not ask itself loads meanwhile what the tiles hold.
    let first = block.first_piece_bytes(src.addr());
    let ahead = len.min(first + (block.tiles() as usize - 1) * block.tile_bytes());
    let loaded_to = if block.loads() && !block.stores() { ahead } else { 0 };
    // SAFETY: obligations 1 and 3.
    let loaded = unsafe { push(block, src, None, 0..loaded_to) };
    let asked = if block.stores() { ask(block, conn, message.tag) } else { loaded.map(|()| 0) };
    let to = asked.unwrap_or_default();
    // Of three outcomes the usual one costs one barrier: where to; else a second one tells slots from a stop.
    let is_direct = block.close(if block.stores() && to == 0 { Err(Stop) } else { asked.map(drop) }).is_ok();
    if !is_direct {
        let stopped = block.close(asked.map(drop));
        if stopped.is_err() {
            return end_tiles(block, stopped).map(|()| false);
        }
    }
    if is_direct && block.stores() {
        // Now, so that it has arrived long before the release behind it.
        conn.announce(arrival(message, &part));
    }
    let (dst, bytes) = match is_direct {
        true => (Some(core::ptr::with_exposed_provenance_mut(to as usize + part.start)), loaded_to..len),
        // What was loaded is dropped.
        false => (None, loaded_to..if block.loads() { loaded_to } else { ahead }),
    };
    // SAFETY: obligations 1 to 3; only the storer uses the address, which it has been told.
    let moved = unsafe { push(block, src, dst, bytes) };
    if is_direct && block.stores() && moved.is_ok() {
        block.wait_stored();
        block.show_peers();
        conn.publish_announced();
        conn.advance();
    }
    end_tiles(block, moved)?;
    Ok(is_direct)
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
    let came = if block.leads() { answer_and_wait(block, &conns.recv[0], message, &part) } else { Ok(false) };
    // As in `send_part`, but slots cost one barrier: plain messages come so, and see whether they were asked about for nothing.
    if block.close(if came == Ok(false) { Ok(()) } else { Err(Stop) }).is_ok() {
        return Ok(false);
    }
    block.close(came.map(drop))?;
    Ok(true)
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
    let address = wait_for(block, conn, || conn.poll_answer(tag))?;
    // What the receiver has done with its buffer comes before our stores.
    block.see_peers();
    Ok(address)
}

/// First worker: says where to, waits for the question, and if it is asked, for the message.
#[inline(always)]
fn answer_and_wait<B: Block>(
    block: &B,
    conn: &RecvConn,
    message: &KernelMessage,
    part: &Range<usize>,
) -> Result<bool, Stop> {
    if message.reached != 0 {
        // The sender finds it there when it asks.
        conn.give_answer(message.tag, message.reached);
    }
    let came = await_message(block, conn, message, part);
    if message.reached != 0 {
        // Who comes later must not write to a buffer that we do not wait for.
        conn.take_answer_back();
    }
    came
}

/// First worker: whether the message lies in the receiver's buffer.
#[inline(always)]
fn await_message<B: Block>(
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
    if message.reached == 0 {
        conn.give_answer(message.tag, 0);
    }
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

/// Copies by the loader and the storer, tile by tile. Without a destination what is loaded is dropped.
///
/// # Safety
/// 1. `src` is readable, and `dst` is writable by the storer; both begin at multiples of 16 bytes. Tiles are open. `bytes` begin
///    with a piece of a push from byte 0 on.
#[inline(always)]
unsafe fn push<B: BulkCopy>(
    block: &B,
    src: *const u8,
    dst: Option<*mut u8>,
    bytes: Range<usize>,
) -> Result<(), Stop> {
    let operands = Operands { count: 1, pre: Pre::None, how: How::default() };
    let mut at = bytes.start;
    // The loader does not know the destination, which most often lies like the source.
    let mut room = if at == 0 { block.first_piece_bytes(src.addr()) } else { block.tile_bytes() };
    while at < bytes.end {
        let len = room.min(bytes.end - at);
        room = block.tile_bytes();
        let source = |_| (src.wrapping_add(at), false);
        let store = |tile: Tile, _: bool| {
            if let Some(dst) = dst {
                // SAFETY: obligation 1; the tile is loaded.
                unsafe { block.store(tile, dst.wrapping_add(at), len, false) };
            }
        };
        let no_slots = Conns { send: &[], recv: &[] };
        // SAFETY: obligation 1.
        unsafe { move_tile(block, no_slots, operands, len, source, store)? };
        at += len;
    }
    Ok(())
}
