//! One message of one connection, over Simple, of a slot at most and brief as a rule, by a block of one thread.
//!
//! [`run_slice`](super::run_slice) carries out any action between any number of peers, and decides at run time which: of a message of
//! 8 bytes that takes ten times as many instructions as the message (docs/measurements/2026-11-25-cpu-short-calls.md). Here is what is
//! left of it where all is known before. The peer cannot tell.

use crate::conn::{PING_PONG_MIN_BYTES, RecvConn, SendConn};
use crate::distance::Fill;
use crate::gpu::cpu::reduce::{ask_to_read, asking_pays, copy};
use crate::gpu::{Block, End, How, Stop, wait_for};
use core::cmp::Ordering;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use oxccl_shared::abi::{Protocol, SlotHeader, SlotLine};
use oxccl_shared::proto::simple::SPREAD_MIN_BYTES;

/// Whether a message of so many bytes is brief: it begins where its slot does. [`exchange_brief`](crate::coll::send_recv::exchange_brief)
/// and recursive doubling also move longer ones, up to a slot.
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

/// A message of a slot at most.
#[derive(Clone, Copy, Debug)]
pub struct Brief {
    /// The tag of its slots.
    pub tag: u32,
    /// Its length.
    pub len_bytes: usize,
}

impl Brief {
    /// The header of its slot.
    #[inline(always)]
    pub(crate) fn header(&self) -> SlotHeader {
        SlotHeader { tag: self.tag, len_bytes: self.len_bytes as u32 }
    }
}

/// Sends the message at `src` when there is a credit for it.
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
    wait_for(block, conn, || conn.poll_credit(Protocol::Simple, true).then_some(()))?;
    // SAFETY: obligations 1 and 2, and there is a credit.
    unsafe { fill(conn, message.header(), src) };
    Ok(())
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
    unsafe { empty(block, conn, message.header(), found, dst)? };
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
    let found = arrival(block, conn)?;
    // SAFETY: obligations 1 and 2.
    unsafe { empty(block, conn, message.header(), found, dst) }
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

/// Waits for a message, and reduces it with `own` into `dst`, with our own operand first if `own_first`, without the pre-operation.
///
/// # Safety
/// 1. As [`send`]'s first.
/// 2. `own` is readable and `dst` writable for its length, a whole number of elements; they are the same or disjoint.
#[inline(always)]
pub(crate) unsafe fn reduce<B: Block>(
    block: &B,
    conn: &RecvConn,
    message: Brief,
    (own, dst): (*const u8, *mut u8),
    own_first: bool,
    how: How,
) -> Result<(), Stop> {
    let theirs = await_place(block, conn, message)?;
    let (a, b) = if own_first { (own, theirs) } else { (theirs, own) };
    // SAFETY: obligations 1 and 2; the slot is full, and no user's memory.
    unsafe { block.combine_bulk(dst, null_mut(), a, b, message.len_bytes, how) };
    release(conn, message.len_bytes as u32);
    Ok(())
}

/// Waits for a message that is reduced, and asks for its first lines. Returns where it is.
#[inline(always)]
fn await_place<B: Block>(block: &B, conn: &RecvConn, message: Brief) -> Result<*const u8, Stop> {
    let (header, found) = (message.header(), arrival(block, conn)?);
    if found != header {
        return Err(block.refuse(conn.wait(), header, found));
    }
    let theirs = place(conn, message.len_bytes);
    ask_to_read(theirs, message.len_bytes);
    Ok(theirs)
}

/// What is reduced: the messages of all peers, and our own operand among them.
pub(crate) struct Operands<'a> {
    /// All connections.
    pub conns: &'a [RecvConn],
    /// Those of the messages, in reduction order.
    pub from: &'a [u16],
    /// Our own operand.
    pub own: *const u8,
    /// Before which of the messages it stands.
    pub own_at: usize,
}

impl Operands<'_> {
    #[inline(always)]
    fn conns(&self) -> impl Iterator<Item = &RecvConn> {
        self.from.iter().map(|index| &self.conns[*index as usize])
    }

    /// Operand `k` of so many bytes.
    #[inline(always)]
    fn at(&self, k: usize, len_bytes: usize) -> *const u8 {
        let message = |i: usize| place(&self.conns[self.from[i] as usize], len_bytes);
        match k.cmp(&self.own_at) {
            Ordering::Less => message(k),
            Ordering::Equal => self.own,
            Ordering::Greater => message(k - 1),
        }
    }
}

/// Bytes that are reduced at a time: the running value stays in the innermost cache, and is in nobody else's.
const TILE_BYTES: usize = 2 << 10;

#[repr(C, align(64))]
struct Tile([MaybeUninit<u8>; TILE_BYTES]);

/// Waits for the messages of all peers, one at least, and reduces them and our own operand in order into `dst`, with the post-operation.
///
/// # Safety
/// 1. As [`send`]'s first; the operator has no pre-operation.
/// 2. The operand is readable and `dst` writable for the messages' length, a whole number of elements; they are the same or disjoint.
pub(crate) unsafe fn reduce_all<B: Block>(
    block: &B,
    operands: &Operands<'_>,
    message: Brief,
    dst: *mut u8,
) -> Result<(), Stop> {
    let len = message.len_bytes;
    for conn in operands.conns() {
        await_place(block, conn, message)?;
    }
    let mut acc = Tile([MaybeUninit::uninit(); TILE_BYTES]);
    for at in (0..len).step_by(TILE_BYTES) {
        let (bytes, last) = (TILE_BYTES.min(len - at), operands.from.len());
        let mut value = operands.at(0, len).wrapping_add(at);
        for k in 1..=last {
            let to = if k == last { dst.wrapping_add(at) } else { acc.0.as_mut_ptr().cast() };
            let how = How { post: k == last, ..How::default() };
            let next = operands.at(k, len).wrapping_add(at);
            // SAFETY: obligations 1 and 2: nothing of our operand is overwritten before it has been read. The slots are full, and no user's memory.
            unsafe { block.combine_bulk(to, null_mut(), value, next, bytes, how) };
            value = to;
        }
    }
    operands.conns().for_each(|conn| release(conn, len as u32));
    Ok(())
}

/// Where a message of so many bytes has come.
#[inline(always)]
fn place(conn: &RecvConn, len_bytes: usize) -> *const u8 {
    let is_longer = len_bytes >= PING_PONG_MIN_BYTES;
    if is_longer { conn.message(len_bytes) } else { conn.short_message(len_bytes) }.cast_const()
}

/// Releases the slot of a message of so many bytes.
#[inline(always)]
fn release(conn: &RecvConn, len_bytes: u32) {
    match len_bytes as usize >= PING_PONG_MIN_BYTES {
        true => conn.release_next_message(len_bytes),
        false => conn.release_next(len_bytes),
    }
}
