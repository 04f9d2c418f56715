//! Long messages between ranks of a host that may read each other's memory: one copy, by the receiver, instead of two through slots.

use super::work::{Offered, P2pWork, Received};
use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Awaited, Block, How, Stop, Wait};
use crate::remote::{RemoteError, RemoteMemory};
use core::ptr::null_mut;
use oxccl_shared::abi::{OfferReply, Protocol, SlotHeader};

/// Bytes read between two looks at other messages.
const PIECE_BYTES: usize = 4 << 20;

/// Whether a message goes by an offer. Both ends say the same.
#[inline]
pub(super) fn is_offered(conns: Conns<'_>, work: &P2pWork) -> bool {
    let index = work.conn as usize;
    work.protocol == Protocol::Simple
        && work.offered != Offered::Declined
        && match work.is_send {
            true => conns.send[index].offers(work.len_bytes),
            false => conns.recv[index].reads(work.len_bytes).is_some(),
        }
}

/// Moves the message on, or returns what it waits for.
///
/// # Safety
/// 1. As [`super::send_recv::run`], for this work; [`is_offered`].
pub(super) unsafe fn advance<B: Block>(
    block: &B,
    conns: Conns<'_>,
    work: &mut P2pWork,
) -> Result<Option<Wait>, Stop> {
    let index = work.conn as usize;
    if work.is_send {
        return Ok(send(&conns.send[index], work));
    }
    let conn = &conns.recv[index];
    match conn.reads(work.len_bytes) {
        // SAFETY: obligation 1.
        Some(memory) => unsafe { receive(block, conn, memory, work) },
        None => Ok(None),
    }
}

/// What the slot's header says of an offer. A receiver of another length refuses it as it would the first slot of such a message.
fn header(work: &P2pWork) -> SlotHeader {
    SlotHeader { tag: work.tag, len_bytes: u32::try_from(work.len_bytes).unwrap_or(u32::MAX) }
}

fn send(conn: &SendConn, work: &mut P2pWork) -> Option<Wait> {
    let on = Wait { peer: conn.peer(), what: Awaited::Credit };
    if work.offered == Offered::NotYet {
        if !conn.poll_credit(Protocol::Simple, true) {
            return Some(on);
        }
        let offer = conn.offer(0);
        offer.address.store_relaxed(work.buffer.expose_provenance() as u64);
        offer.len_bytes.store_relaxed(work.len_bytes as u64);
        offer.withdrawn.store_relaxed(0);
        conn.publish(header(work));
        conn.advance();
        work.offered = Offered::Made;
        return None;
    }
    // Nothing follows on this connection before the answer, so drained means answered.
    if !conn.is_drained() {
        return Some(on);
    }
    match conn.offer(1).answered() {
        OfferReply::Taken => {
            count(work.len_bytes, |bytes| conn.count(bytes));
            (work.done_bytes, work.finished) = (work.len_bytes, true);
        }
        OfferReply::Declined => work.offered = Offered::Declined,
    }
    None
}

/// # Safety
/// 1. As [`advance`], for a message that is received.
unsafe fn receive<B: Block>(
    block: &B,
    conn: &RecvConn,
    memory: &dyn RemoteMemory,
    work: &mut P2pWork,
) -> Result<Option<Wait>, Stop> {
    let on = Wait { peer: conn.peer(), what: Awaited::Data };
    let Some(found) = conn.poll() else { return Ok(Some(on)) };
    let (expected, offer) = (header(work), conn.offer());
    if found != expected || offer.len_bytes.load_relaxed() != work.len_bytes as u64 {
        return Err(block.refuse(on, expected, found));
    }
    let output = work.buffer.wrapping_add(work.done_bytes);
    let (to, piece_bytes) = match work.received {
        Received::Kept => (output, PIECE_BYTES),
        // In place: nothing follows an offer before its answer, so the next slot is free until then.
        Received::Reduced { own, .. } if own == work.buffer.cast_const() => {
            (conn.slot_after(1), conn.layout().simple_slot_bytes as usize)
        }
        // Where the sum belongs: a slot's worth would be one more that the caches hold.
        Received::Reduced { .. } => (output, conn.layout().simple_slot_bytes as usize),
    };
    let len = piece_bytes.min(work.len_bytes - work.done_bytes);
    let address = offer.address.load_relaxed() + work.done_bytes as u64;
    // SAFETY: obligation 1: the piece is the next one of the buffer, or fits the slot, and the offer is of as many bytes.
    let read = unsafe { memory.read(to, address, len) };
    let is_withdrawn = !offer.stands();
    match read {
        // The sender has failed or ended, and whoever waits hears of it.
        Err(RemoteError::Gone) => return Ok(Some(on)),
        _ if is_withdrawn => return Ok(Some(on)),
        Err(RemoteError::Unreadable) => {
            if let Received::Reduced { from_bytes, .. } = &mut work.received {
                *from_bytes = work.done_bytes;
            }
            (work.done_bytes, work.offered) = (0, Offered::Declined);
            answer(conn, OfferReply::Declined);
            return Ok(None);
        }
        // SAFETY: obligation 1; the piece has been read.
        Ok(()) => unsafe { reduce(block, work, to, len) },
    }
    conn.count(len);
    work.done_bytes += len;
    if work.done_bytes == work.len_bytes {
        work.finished = true;
        answer(conn, OfferReply::Taken);
    }
    Ok(None)
}

/// Reduces a piece that was read, if it is to be reduced.
///
/// # Safety
/// 1. As [`advance`]: the piece is the next one of the message, and lies in a slot of ours or where its sum belongs.
unsafe fn reduce<B: Block>(block: &B, work: &P2pWork, piece: *const u8, len_bytes: usize) {
    let Received::Reduced { own, place, .. } = work.received else { return };
    let [own, to] = [own, work.buffer.cast_const()].map(|base| base.wrapping_add(work.done_bytes));
    let (a, b) = if place == 0 { (own, piece) } else { (piece, own) };
    // SAFETY: obligation 1.
    unsafe { block.combine_bulk(to.cast_mut(), null_mut(), a, b, len_bytes, How::default()) };
}

fn answer(conn: &RecvConn, reply: OfferReply) {
    conn.offer().answer(reply);
    conn.release();
    conn.advance();
}

/// Counts a message in pieces of a slot's greatest length.
fn count(len_bytes: usize, mut add: impl FnMut(usize)) {
    let mut left = len_bytes;
    while left > 0 {
        let piece = left.min(PIECE_BYTES);
        add(piece);
        left -= piece;
    }
}

/// Takes back the offers that have no answer: an operation that fails gives the user's memory back, and what a receiver reads from then on
/// is no message.
pub(super) fn withdraw(conns: Conns<'_>, works: &[P2pWork]) {
    let open = works.iter().filter(|work| work.is_send && work.offered == Offered::Made && !work.finished);
    open.for_each(|work| conns.send[work.conn as usize].offer(1).withdraw());
}
