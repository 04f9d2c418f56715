//! Long messages between ranks of a host that may read each other's memory: one copy, by the receiver, instead of two through slots.
//!
//! Every other message of a connection is read from its end to its beginning. A call that is made again on the same buffers then finds in
//! the caches what it touched last. Always from the beginning, it would find what it touches last, and lose it on the way there: an
//! all-reduce of 1 MiB, 3 MiB in caches of 2, takes 0.8 of the time (docs/measurements/2026-11-26-cpu-middle.md).

use super::work::{Offered, P2pWork, Received};
use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Awaited, Block, How, Stop, Wait};
use crate::remote::{RemoteMemory, Unreadable};
use core::ops::Range;
use core::ptr::null_mut;
use oxccl_shared::abi::{OfferReply, Protocol, SlotHeader};

/// Bytes read between two looks at other messages. The system call itself takes 0.3 us: that is some 2 % of a copy of this length. A longer
/// piece would leave the caches before the next message begins at its end.
const PIECE_BYTES: usize = 512 << 10;

/// Bytes that a sender counts as one slot.
const COUNTED_BYTES: usize = 4 << 20;

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
    let is_in_place =
        matches!(work.received, Received::Reduced { own, .. } if own == work.buffer.cast_const());
    // In place sums overwrite our input: if the offer is declined halfway, what was reduced must be what comes first through slots.
    let backwards = conn.reads_backwards() && !is_in_place;
    let piece_bytes = match work.received {
        Received::Kept => PIECE_BYTES,
        Received::Reduced { .. } => conn.layout().simple_slot_bytes as usize,
    };
    let Range { start: at, end } = next_piece(work, piece_bytes, backwards);
    let len = end - at;
    // In place: nothing follows an offer before its answer, so the next slot is free until then. Otherwise a sum is read to where it
    // belongs: a slot's worth would be one more that the caches hold.
    let to = if is_in_place { conn.slot_after(1) } else { work.buffer.wrapping_add(at) };
    let address = offer.address.load_relaxed() + at as u64;
    // SAFETY: obligation 1: the piece is the next one of the buffer, or fits the slot, and the offer is of as many bytes.
    let read = unsafe { memory.read(to, address, len) };
    let is_withdrawn = !offer.stands();
    match read {
        // The sender has failed. The bootstrap tells this rank, whose wait ends then.
        _ if is_withdrawn => return Ok(Some(on)),
        Err(Unreadable) => {
            if let Received::Reduced { from_bytes, .. } = &mut work.received {
                *from_bytes = if backwards { 0 } else { work.done_bytes };
            }
            (work.done_bytes, work.offered) = (0, Offered::Declined);
            answer(conn, OfferReply::Declined);
            return Ok(None);
        }
        // SAFETY: obligation 1; the piece has been read.
        Ok(()) => unsafe { reduce(block, work, to, at..end) },
    }
    conn.count(len);
    work.done_bytes += len;
    if work.done_bytes == work.len_bytes {
        work.finished = true;
        answer(conn, OfferReply::Taken);
    }
    Ok(None)
}

/// What is read next of a message. Pieces meet at whole ones, whichever end comes first.
fn next_piece(work: &P2pWork, piece_bytes: usize, backwards: bool) -> Range<usize> {
    let (done, end) = (work.done_bytes, work.len_bytes - work.done_bytes);
    match backwards {
        true => end.saturating_sub(1) / piece_bytes * piece_bytes..end,
        false => done..work.len_bytes.min(done + piece_bytes),
    }
}

/// Reduces a piece that was read, if it is to be reduced.
///
/// # Safety
/// 1. As [`advance`]: the piece is these bytes of the message, and lies in a slot of ours or where its sum belongs.
unsafe fn reduce<B: Block>(block: &B, work: &P2pWork, piece: *const u8, range: Range<usize>) {
    let Received::Reduced { own, place, .. } = work.received else { return };
    let [own, to] = [own, work.buffer.cast_const()].map(|base| base.wrapping_add(range.start));
    let (a, b) = if place == 0 { (own, piece) } else { (piece, own) };
    // SAFETY: obligation 1.
    unsafe { block.combine_bulk(to.cast_mut(), null_mut(), a, b, range.len(), How::default()) };
}

fn answer(conn: &RecvConn, reply: OfferReply) {
    conn.offer().answer(reply);
    conn.release();
    conn.advance();
    conn.turn();
}

/// Counts a message in pieces of a slot's greatest length.
fn count(len_bytes: usize, mut add: impl FnMut(usize)) {
    let mut left = len_bytes;
    while left > 0 {
        let piece = left.min(COUNTED_BYTES);
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
