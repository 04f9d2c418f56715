//! Long messages between ranks of a host that may read each other's memory: one copy, by the receiver, instead of two through slots.

use super::work::{Offered, P2pWork};
use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Awaited, Block, Stop, Wait};
use crate::remote::{RemoteError, RemoteMemory};
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
        if !conn.poll_credit(true) {
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
    let len = PIECE_BYTES.min(work.len_bytes - work.done_bytes);
    let address = offer.address.load_relaxed() + work.done_bytes as u64;
    // SAFETY: obligation 1: the piece is the next one of the buffer, and the offer is of as many bytes.
    let read = unsafe { memory.read(work.buffer.wrapping_add(work.done_bytes), address, len) };
    let is_withdrawn = !offer.stands();
    match read {
        // The sender has failed or ended, and whoever waits hears of it.
        Err(RemoteError::Gone) => return Ok(Some(on)),
        _ if is_withdrawn => return Ok(Some(on)),
        Err(RemoteError::Unreadable) => {
            (work.done_bytes, work.offered) = (0, Offered::Declined);
            answer(conn, OfferReply::Declined);
            return Ok(None);
        }
        Ok(()) => {}
    }
    conn.count(len);
    work.done_bytes += len;
    if work.done_bytes == work.len_bytes {
        work.finished = true;
        answer(conn, OfferReply::Taken);
    }
    Ok(None)
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
