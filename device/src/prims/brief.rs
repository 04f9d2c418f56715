//! One message of one connection, over Simple, of a slot at most and brief as a rule, by a block of one thread.
//!
//! [`run_slice`](super::run_slice) carries out any action between any number of peers, and decides at run time which: of a message of
//! 8 bytes that takes ten times as many instructions as the message (docs/measurements/2026-11-25-cpu-short-calls.md). Here is what is
//! left of it where all is known before. The peer cannot tell.

use crate::conn::{PING_PONG_MIN_BYTES, RecvConn, SendConn};
use crate::distance::Fill;
use crate::gpu::cpu::reduce::{ask_to_read, asking_pays, copy};
use crate::gpu::{Block, End, How, Stop, wait_for};
use core::ptr::null_mut;
use oxccl_shared::abi::{Protocol, SlotHeader, SlotLine};
use oxccl_shared::proto::simple::SPREAD_MIN_BYTES;

/// Whether a message of so many bytes is brief: it begins where its slot does. [`exchange_brief`](crate::coll::send_recv::exchange_brief)
/// also moves longer ones, up to a slot.
#[inline(always)]
pub const fn is_brief(len_bytes: usize) -> bool {
    len_bytes < SPREAD_MIN_BYTES
}

/// Whether the next line is asked for after a message of so many bytes where both ranks send: after one that is published in the line of its
/// slot. Of longer ones it takes 3 to 5 % more, in the way of what is copied (docs/measurements/2026-11-26-cpu-middle.md).
#[inline(always)]
pub(crate) fn asks_both_ways(len_bytes: usize) -> bool {
    len_bytes <= SlotLine::PAYLOAD_BYTES && asking_pays()
}

/// Shortest message that goes in two slots, a half in each, on the processors of [`halves_pay`]. Two ranks that exchange messages fill their
/// slots at the same time, and what either waits for then is the first line of the other's: with halves it has been there for as long as the
/// second half took. A program that does nothing else takes 0.47 us for 2 KiB instead of 0.53, 0.74 for 4 KiB instead of 0.91
/// (docs/measurements/2026-11-26-cpu-messages.md).
const HALVED_MIN_BYTES: usize = 2 << 10;

/// Whether halves are faster: on Intel's processors, where that was measured. On others a message lies whole in a buffer that its sender has
/// just read, and 4 KiB take 0.92 of the time (docs/measurements/2026-11-29-cpu-zen4.md). Both ends are processors of one host, and say the same.
#[inline(always)]
pub fn halves_pay() -> bool {
    asking_pays()
}

/// Slots that a message takes at most.
pub(crate) const SLOTS_MAX: usize = 2;

/// A message of a slot at most.
#[derive(Clone, Copy, Debug)]
pub struct Brief {
    /// The tag of its slots.
    pub tag: u32,
    /// Its length.
    pub len_bytes: usize,
    /// Whether it may go in halves. Where nobody sends anything in return, these would be two messages instead of one.
    pub in_halves: bool,
}

impl Brief {
    /// The header of the slot with the bytes from `at` on. `is_spread`: both ends are processors, and nobody between them sees
    /// slots.
    #[inline(always)]
    pub(crate) fn piece(&self, is_spread: bool, at: usize) -> SlotHeader {
        let mut len_bytes = self.len_bytes - at;
        let may_be_halved = self.len_bytes >= HALVED_MIN_BYTES && is_brief(self.len_bytes);
        if may_be_halved && self.in_halves && is_spread && halves_pay() {
            len_bytes = len_bytes.min(self.len_bytes.div_ceil(2).next_multiple_of(64));
        }
        SlotHeader { tag: self.tag, len_bytes: len_bytes as u32 }
    }
}

/// Sends the message at `src`, each slot when there is a credit for it.
///
/// # Safety
/// 1. The block is one thread; the message fits a slot.
/// 2. `src` is readable for its length.
#[inline(always)]
pub(crate) unsafe fn send<B: Block>(
    block: &B,
    conn: &SendConn,
    message: Brief,
    src: *const u8,
) -> Result<(), Stop> {
    // SAFETY: obligations 1 and 2.
    let sent = unsafe { send_slot(block, conn, message, src, 0)? };
    if sent == message.len_bytes {
        return Ok(());
    }
    // SAFETY: as above.
    second_half(|| unsafe { send_slot(block, conn, message, src, sent) })
}

/// Sends the slot with the bytes from `at` on. Returns where the next one begins.
///
/// # Safety
/// 1. As [`send`], both.
#[inline(always)]
unsafe fn send_slot<B: Block>(
    block: &B,
    conn: &SendConn,
    message: Brief,
    src: *const u8,
    at: usize,
) -> Result<usize, Stop> {
    let header = message.piece(conn.is_spread(), at);
    wait_for(block, conn, || conn.poll_credit(Protocol::Simple, true).then_some(()))?;
    // SAFETY: obligation 1, and there is a credit.
    unsafe { fill(conn, header, src.wrapping_add(at)) };
    Ok(at + header.len_bytes as usize)
}

/// Carries out what only longer messages have, apart from what short ones do: in one loop an all-reduce of 16 bytes takes 20
/// to 30 instructions more.
#[cold]
#[inline(never)]
fn second_half(half: impl FnOnce() -> Result<usize, Stop>) -> Result<(), Stop> {
    half().map(drop)
}

/// Fills a slot with what is at `src`.
///
/// # Safety
/// 1. As [`send`], and the connection has a credit.
#[inline(always)]
pub(crate) unsafe fn fill(conn: &SendConn, header: SlotHeader, src: *const u8) {
    let len = header.len_bytes as usize;
    if len >= PING_PONG_MIN_BYTES {
        // SAFETY: obligation 1 is passed on.
        return unsafe { fill_longer(conn, header, src) };
    }
    // SAFETY: obligation 1: the slot is empty, and no user's memory.
    unsafe { copy(conn.short_message(len), src, len, false) };
    conn.publish_next(header);
    conn.ask_for_next(len);
}

/// As [`fill`], for messages that may lie in a buffer of the pair's. Apart, so that short ones take few instructions.
///
/// # Safety
/// 1. As [`fill`].
#[inline(never)]
unsafe fn fill_longer(conn: &SendConn, header: SlotHeader, src: *const u8) {
    let len = header.len_bytes as usize;
    let to = conn.message(len);
    // SAFETY: obligation 1: the slot is empty, or the buffer ours, and neither is user's memory.
    let copy = |streams| unsafe { copy(to, src, len, streams) };
    match conn.fill(len, true) {
        Fill::Timed => conn.time(len, || copy(false)),
        fill => copy(fill == Fill::Streamed),
    }
    let asks = is_brief(len) && conn.fills_slot();
    conn.publish_next_message(header);
    if asks {
        conn.ask_for_next(len);
    }
}

/// Waits for a message. Asks once, not in each poll, where its slot is published.
#[inline(always)]
fn arrival<B: Block>(block: &B, conn: &RecvConn) -> Result<SlotHeader, Stop> {
    match conn.next_line() {
        Some(line) => wait_for(block, conn, || line.poll()),
        None => wait_for(block, conn, || conn.poll()),
    }
}

/// As [`recv`], of a producer that does not wait for us: if it is ahead, the next message's lines come meanwhile.
///
/// # Safety
/// 1. As [`recv`], both.
#[inline(always)]
pub(crate) unsafe fn recv_one_way<B: Block>(
    block: &B,
    conn: &RecvConn,
    message: Brief,
    dst: *mut u8,
) -> Result<(), Stop> {
    let Some(found) = conn.poll() else {
        // SAFETY: obligation 1.
        return unsafe { recv(block, conn, message, dst) };
    };
    // SAFETY: obligation 1.
    unsafe { empty(block, conn, message.piece(conn.is_spread(), 0), found, dst)? };
    conn.ask_for_next(message.len_bytes);
    Ok(())
}

/// Waits for a message, and writes it to `dst`.
///
/// # Safety
/// 1. As [`send`]'s first.
/// 2. `dst` is writable for its length.
#[inline(always)]
pub(crate) unsafe fn recv<B: Block>(
    block: &B,
    conn: &RecvConn,
    message: Brief,
    dst: *mut u8,
) -> Result<(), Stop> {
    // SAFETY: obligations 1 and 2.
    let received = unsafe { recv_slot(block, conn, message, dst, 0)? };
    if received == message.len_bytes {
        return Ok(());
    }
    // SAFETY: as above.
    second_half(|| unsafe { recv_slot(block, conn, message, dst, received) })
}

/// Waits for the slot with the bytes from `at` on, and copies it. Returns where the next one begins.
///
/// # Safety
/// 1. As [`recv`], both.
#[inline(always)]
unsafe fn recv_slot<B: Block>(
    block: &B,
    conn: &RecvConn,
    message: Brief,
    dst: *mut u8,
    at: usize,
) -> Result<usize, Stop> {
    let header = message.piece(conn.is_spread(), at);
    let found = arrival(block, conn)?;
    // SAFETY: obligation 1.
    unsafe { empty(block, conn, header, found, dst.wrapping_add(at))? };
    Ok(at + header.len_bytes as usize)
}

/// Writes the slot that has come to `dst`, if its header is the one that we expect.
///
/// # Safety
/// 1. As [`recv`], both; `found` is the header of the connection's next slot.
#[inline(always)]
pub(crate) unsafe fn empty<B: Block>(
    block: &B,
    conn: &RecvConn,
    header: SlotHeader,
    found: SlotHeader,
    dst: *mut u8,
) -> Result<(), Stop> {
    if found != header {
        return Err(block.refuse(conn.wait(), header, found));
    }
    let len = header.len_bytes as usize;
    if len >= PING_PONG_MIN_BYTES {
        // SAFETY: obligation 1 is passed on.
        unsafe { empty_longer(conn, header.len_bytes, dst) };
        return Ok(());
    }
    // SAFETY: obligation 1: the slot is full, and no user's memory.
    unsafe { copy(dst, conn.short_message(len), len, false) };
    conn.release_next(header.len_bytes);
    Ok(())
}

/// As [`fill_longer`], of what has come.
///
/// # Safety
/// 1. As [`empty`], and the header is right.
#[inline(never)]
unsafe fn empty_longer(conn: &RecvConn, len_bytes: u32, dst: *mut u8) {
    let len = len_bytes as usize;
    // SAFETY: obligation 1: the slot or buffer is full, and no user's memory.
    unsafe { copy(dst, conn.message(len), len, false) };
    conn.release_next_message(len_bytes);
}

/// Waits for a message, and reduces it with `own` into `dst`, with our own operand first if `own_first`.
///
/// # Safety
/// 1. As [`send`]'s first; the operator changes neither inputs nor results.
/// 2. `own` is readable and `dst` writable for its length, a whole number of elements; they are the same or disjoint.
#[inline(always)]
pub(crate) unsafe fn reduce<B: Block>(
    block: &B,
    conn: &RecvConn,
    message: Brief,
    (own, dst): (*const u8, *mut u8),
    own_first: bool,
) -> Result<(), Stop> {
    // SAFETY: obligations 1 and 2.
    let reduced = unsafe { reduce_slot(block, conn, message, (own, dst), own_first, 0)? };
    if reduced == message.len_bytes {
        return Ok(());
    }
    // SAFETY: as above.
    second_half(|| unsafe { reduce_slot(block, conn, message, (own, dst), own_first, reduced) })
}

/// Waits for the slot with the bytes from `at` on, and reduces it. Returns where the next one begins.
///
/// # Safety
/// 1. As [`reduce`], both.
#[inline(always)]
unsafe fn reduce_slot<B: Block>(
    block: &B,
    conn: &RecvConn,
    message: Brief,
    (own, dst): (*const u8, *mut u8),
    own_first: bool,
    at: usize,
) -> Result<usize, Stop> {
    let header = message.piece(conn.is_spread(), at);
    let found = arrival(block, conn)?;
    if found != header {
        return Err(block.refuse(conn.wait(), header, found));
    }
    let len = header.len_bytes as usize;
    let is_longer = len >= PING_PONG_MIN_BYTES;
    let theirs = if is_longer { conn.message(len) } else { conn.short_message(len) }.cast_const();
    let own = own.wrapping_add(at);
    ask_to_read(theirs, len);
    let (a, b) = if own_first { (own, theirs) } else { (theirs, own) };
    // SAFETY: obligation 1; the slot is full, and no user's memory.
    unsafe { block.combine_bulk(dst.wrapping_add(at), null_mut(), a, b, len, How::default()) };
    match is_longer {
        true => conn.release_next_message(header.len_bytes),
        false => conn.release_next(header.len_bytes),
    }
    Ok(at + len)
}
