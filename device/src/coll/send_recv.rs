//! Point to point: any number of concurrent sends and receives, none of which blocks another.

#[cfg(feature = "cpu")]
use super::offer;
use super::work::{Offered, P2pWork, Received};
use crate::conn::Conns;
use crate::gpu::{Block, End, Lines, Stop, Wait};
#[cfg(feature = "cpu")]
use crate::prims::brief::{self, Brief};
use crate::prims::{Ll, Ll128, Proto, Simple, Slice, run_slice};
use core::ops::Range;
use oxccl_shared::abi::{ConnLayout, KernelMessage, Protocol, SlotHeader};
use oxccl_shared::algo::Action;

/// Transfers every message of `works`, each slice as soon as its connection allows. Messages on one connection are
/// transferred in the order of `works`, which comes back with those that are left in front.
///
/// # Safety
/// 1. Each buffer is readable (send) or writable (receive) for its length, and no received one overlaps another.
/// 2. Each index names a connection of `conns`.
pub unsafe fn run<B: Lines>(block: &B, conns: Conns<'_>, works: &mut [P2pWork]) -> Result<(), Stop> {
    #[cfg(feature = "cpu")]
    match works {
        [] => return Ok(()),
        [work] if work.done_bytes == 0 && is_brief(conns, work) => {
            // SAFETY: obligations 1 and 2 are passed on.
            return unsafe { wait_brief(block, conns, work) };
        }
        _ => {}
    }
    let (mut polls, mut left) = (0u32, works.len());
    loop {
        // SAFETY: obligations 1 and 2 are passed on.
        let swept = unsafe { sweep(block, conns, &mut works[..left])? };
        match swept.waits {
            None if !swept.moved => return Ok(()),
            Some(wait) if !swept.moved => {
                polls = polls.saturating_add(1);
                block.idle(wait, polls)?;
            }
            _ => (polls, left) = (0, unfinished_first(&mut works[..left])),
        }
    }
}

/// Puts the messages that are not finished in front, in their order, and returns how many they are.
///
/// The next sweep visits those alone. If it went past all that are finished, for each message that waits behind another of its connection,
/// a group of n messages to one rank would take n^3 steps.
fn unfinished_first(works: &mut [P2pWork]) -> usize {
    let mut left = 0;
    for index in 0..works.len() {
        if !works[index].finished {
            // As long as none is finished, as in most groups after most slices, nothing moves.
            if left != index {
                works.swap(left, index);
            }
            left += 1;
        }
    }
    left
}

/// Call before the buffers of messages that were not all transferred go back to the user: receivers no longer read them.
///
/// `works` may be those of connections that offer nothing.
#[cfg(feature = "cpu")]
pub fn withdraw(conns: Conns<'_>, works: &[P2pWork]) {
    offer::withdraw(conns, works);
}

/// What came of one visit to every message.
#[derive(Clone, Copy, Debug)]
pub struct Swept {
    /// Whether a slice moved.
    pub moved: bool,
    /// What the first message that could not move waits for.
    pub waits: Option<Wait>,
}

/// Moves a slice of every message whose connection allows it, without waiting.
///
/// # Safety
/// 1. As [`run`], both.
pub unsafe fn sweep<B: Lines>(block: &B, conns: Conns<'_>, works: &mut [P2pWork]) -> Result<Swept, Stop> {
    let mut swept = Swept { moved: false, waits: None };
    for index in 0..works.len() {
        if works[index].finished || is_behind(works, index) {
            continue;
        }
        // SAFETY: obligation 1 is passed on.
        match unsafe { advance(block, conns, &mut works[index])? } {
            None => swept.moved = true,
            Some(wait) => swept.waits = swept.waits.or(Some(wait)),
        }
    }
    Ok(swept)
}

/// Whether an earlier incomplete message uses the same connection.
fn is_behind(works: &[P2pWork], index: usize) -> bool {
    let work = &works[index];
    works[..index].iter().any(|w| !w.finished && w.conn == work.conn && w.is_send == work.is_send)
}

/// Moves one slice, or returns what it waits for.
///
/// # Safety
/// 1. As [`run`], for this work.
unsafe fn advance<B: Lines>(block: &B, conns: Conns<'_>, work: &mut P2pWork) -> Result<Option<Wait>, Stop> {
    #[cfg(feature = "cpu")]
    if is_brief(conns, work) {
        // SAFETY: obligation 1; as just asked.
        return unsafe { advance_brief(block, conns, work) };
    }
    #[cfg(feature = "cpu")]
    if offer::is_offered(conns, work) {
        // SAFETY: obligation 1.
        return unsafe { offer::advance(block, conns, work) };
    }
    match work.protocol {
        // SAFETY: obligation 1 is passed on.
        Protocol::LL => unsafe { advance_over::<B, Ll<1>>(block, conns, work) },
        // SAFETY: obligation 1 is passed on.
        Protocol::LL128 => unsafe { advance_over::<B, Ll128>(block, conns, work) },
        // SAFETY: obligation 1 is passed on.
        Protocol::Simple => unsafe { advance_over::<B, Simple>(block, conns, work) },
    }
}

/// A message to one rank and one from one, which may be the same.
#[cfg(feature = "cpu")]
#[derive(Clone, Copy, Debug)]
pub struct BriefExchange {
    /// The connection to the one.
    pub send: u16,
    /// What it is to have.
    pub src: *const u8,
    /// That message.
    pub sent: Brief,
    /// The connection from the other.
    pub recv: u16,
    /// Where what comes from it belongs.
    pub dst: *mut u8,
    /// That message.
    pub received: Brief,
}

/// Transfers both messages, if both fit a slot of Simple, neither is read out of its sender's memory, and one can be sent at once. Otherwise
/// nothing is done. Returns whether it did. The peers cannot tell.
///
/// # Safety
/// 1. `src` is readable and `dst` writable for the messages' lengths, and they do not overlap.
/// 2. The indices name connections of `conns`, on which no other message is under way; the block is one thread.
#[cfg(feature = "cpu")]
#[inline(always)]
pub unsafe fn exchange_brief<B: Block>(
    block: &B,
    conns: Conns<'_>,
    work: &BriefExchange,
) -> Result<bool, Stop> {
    let (to, from) = (&conns.send[work.send as usize], &conns.recv[work.recv as usize]);
    let (sent, received) = (work.sent.len_bytes, work.received.len_bytes);
    if sent > to.layout().simple_slot_bytes as usize
        || received > from.layout().simple_slot_bytes as usize
        || to.offers(sent)
        || from.reads(received).is_some()
        || !to.poll_credit(Protocol::Simple, true)
    {
        return Ok(false);
    }
    // SAFETY: obligations 1 and 2; there is a credit, so that we do not wait while the peer waits for us.
    unsafe { brief::send(block, to, work.sent, work.src)? };
    if brief::asks_both_ways(sent) {
        to.ask_for_next_line(sent);
    }
    // SAFETY: obligations 1 and 2.
    unsafe { brief::recv(block, from, work.received, work.dst)? };
    Ok(true)
}

/// Whether a message is brief and fits a slot, of a connection of processors.
#[cfg(feature = "cpu")]
#[inline(always)]
fn is_brief(conns: Conns<'_>, work: &P2pWork) -> bool {
    let index = work.conn as usize;
    let layout = if work.is_send { conns.send[index].layout() } else { conns.recv[index].layout() };
    work.protocol == Protocol::Simple
        && work.received == Received::Kept
        && brief::is_brief(work.len_bytes)
        && work.len_bytes <= layout.simple_slot_bytes as usize
        && !offer::is_offered(conns, work)
}

#[cfg(feature = "cpu")]
#[inline(always)]
fn brief_of(work: &P2pWork) -> Brief {
    Brief { tag: work.tag, len_bytes: work.len_bytes }
}

/// Moves a message of which nothing has moved, or returns what it waits for.
///
/// # Safety
/// 1. As [`run`], for this work; [`is_brief`].
#[cfg(feature = "cpu")]
#[inline(always)]
unsafe fn advance_brief<B: Block>(
    block: &B,
    conns: Conns<'_>,
    work: &mut P2pWork,
) -> Result<Option<Wait>, Stop> {
    let (index, header) = (work.conn as usize, brief_of(work).header());
    if work.is_send {
        let conn = &conns.send[index];
        if !conn.poll_credit(Protocol::Simple, true) {
            return Ok(Some(conn.wait()));
        }
        // SAFETY: obligation 1; blocks of processors are one thread; there is a credit.
        unsafe { brief::fill(conn, header, work.buffer) };
    } else {
        let conn = &conns.recv[index];
        let Some(found) = conn.poll() else { return Ok(Some(conn.wait())) };
        // SAFETY: as above; this is the next slot's header.
        unsafe { brief::empty(block, conn, header, found, work.buffer)? };
    }
    (work.done_bytes, work.finished) = (work.len_bytes, true);
    Ok(None)
}

/// Moves a message of which nothing has moved when its connection allows it.
///
/// # Safety
/// 1. As [`advance_brief`].
#[cfg(feature = "cpu")]
#[inline(always)]
unsafe fn wait_brief<B: Block>(block: &B, conns: Conns<'_>, work: &mut P2pWork) -> Result<(), Stop> {
    let (index, message) = (work.conn as usize, brief_of(work));
    // SAFETY: obligation 1; blocks of processors are one thread.
    unsafe {
        match work.is_send {
            true => brief::send(block, &conns.send[index], message, work.buffer)?,
            false => brief::recv(block, &conns.recv[index], message, work.buffer)?,
        }
    }
    (work.done_bytes, work.finished) = (work.len_bytes, true);
    Ok(())
}

/// Moves what can be moved of a message at once, if it is brief. Returns whether all of it was.
///
/// # Safety
/// 1. As [`run`], for this work, which comes behind no other on its connection.
#[cfg(feature = "cpu")]
#[inline(always)]
pub unsafe fn at_once<B: Block>(block: &B, conns: Conns<'_>, work: &mut P2pWork) -> Result<bool, Stop> {
    if !is_brief(conns, work) {
        return Ok(false);
    }
    // SAFETY: obligation 1; as just asked.
    Ok(unsafe { advance_brief(block, conns, work)? }.is_none())
}

/// Bytes of the next slice of a message, or what it waits for. Both ends say the same: either knows where it lies.
#[inline(always)]
fn next_slice<B: Block, P: Proto<B>>(conns: Conns<'_>, work: &P2pWork) -> Result<usize, Wait> {
    let (index, left) = (work.conn as usize, work.len_bytes - work.done_bytes);
    // What was read in part comes again in slots, in pieces like those that were read.
    let comes_again = work.offered == Offered::Declined;
    let of_slot = |layout: &ConnLayout| left.min(P::payload_bytes(layout));
    if work.is_send {
        let conn = &conns.send[index];
        let len = || if comes_again { of_slot(conn.layout()) } else { P::part_to_send(conn, left) };
        conn.poll_credit(P::PROTOCOL, true).then(len).ok_or(conn.wait())
    } else {
        let conn = &conns.recv[index];
        let len = |_| if comes_again { of_slot(conn.layout()) } else { P::part_received(conn, left) };
        P::poll_header(conn).map(len).ok_or(conn.wait())
    }
}

/// # Safety
/// 1. As [`run`], for this work.
unsafe fn advance_over<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    work: &mut P2pWork,
) -> Result<Option<Wait>, Stop> {
    let len = match next_slice::<B, P>(conns, work) {
        Ok(len) => len,
        Err(wait) => return Ok(Some(wait)),
    };
    let connection = [work.conn];
    let (action, src, src_position) = match work.received {
        _ if work.is_send => (Action::SEND, work.buffer.cast_const(), 0),
        Received::Kept => (Action::RECV, work.buffer.cast_const(), 0),
        Received::Reduced { own, from_bytes, .. } if work.done_bytes < from_bytes => (Action::DROP, own, 0),
        Received::Reduced { own, place, .. } => (Action::RECV_REDUCE_COPY, own, place),
    };
    let slice = Slice {
        action,
        header: SlotHeader { tag: work.tag, len_bytes: len as u32 },
        recv: &connection,
        send: &connection,
        src_position,
        src: src.wrapping_add(work.done_bytes),
        dst: work.buffer.wrapping_add(work.done_bytes),
        stream: false,
    };
    // SAFETY: obligation 1: the slice is the next part of the buffer.
    unsafe { run_slice::<B, P>(block, conns, &slice)? };
    work.done_bytes += len;
    work.finished = work.done_bytes == work.len_bytes;
    Ok(None)
}

/// One block's part of one message: the message is divided among `nchannels` blocks, each with a connection of its own.
///
/// # Safety
/// 1. `conns` holds the message's connection alone; the buffer is as in [`run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub unsafe fn run_part<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    message: &KernelMessage,
    part: Range<usize>,
) -> Result<(), Stop> {
    let is_send = message.is_send();
    let layout = if is_send { conns.send[0].layout() } else { conns.recv[0].layout() };
    let slice_bytes = slice_bytes(P::PROTOCOL, part.len(), P::payload_bytes(layout));
    let mut at = part.start;
    loop {
        let len = slice_bytes.min(part.end - at);
        let slice = Slice {
            action: if is_send { Action::SEND } else { Action::RECV },
            header: SlotHeader { tag: message.tag, len_bytes: len as u32 },
            recv: &[0],
            send: &[0],
            src_position: 0,
            src: message.buffer.wrapping_add(at).cast_const(),
            dst: message.buffer.wrapping_add(at),
            stream: false,
        };
        // SAFETY: obligation 1: the slice is the next part of the buffer.
        unsafe { run_slice::<B, P>(block, conns, &slice)? };
        at += len;
        if at == part.end {
            return Ok(());
        }
    }
}

/// Bytes of the slices of a part. They are as many as slots that are filled would be, which proxies count; of few, none is short, so that one is
/// sent while another is received.
#[inline(always)]
fn slice_bytes(protocol: Protocol, part_bytes: usize, slot_bytes: usize) -> usize {
    const FEW: usize = 16;
    const GRAIN_BYTES: usize = 512;
    let is_few = part_bytes > slot_bytes && part_bytes <= FEW * slot_bytes;
    // With more, or in shorter slots, whole grains could leave little for the last one.
    if !protocol.is_counted() || !is_few || slot_bytes < FEW * GRAIN_BYTES {
        return slot_bytes;
    }
    let count = part_bytes.div_ceil(slot_bytes);
    part_bytes.div_ceil(count).next_multiple_of(GRAIN_BYTES).min(slot_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_as_many_as_slots_and_of_few_none_is_short() {
        for slot in [256, 4 << 10, 8 << 10, 64 << 10, 120 << 10, 240 << 10] {
            for part in
                (0..40).flat_map(|slots| [slots * slot, slots * slot + 1, slots * slot + slot / 2 + 8])
            {
                for protocol in [Protocol::LL, Protocol::LL128, Protocol::Simple] {
                    let slice = slice_bytes(protocol, part, slot);
                    assert!(slice > 0 && slice <= slot, "{part} by {slot}");
                    let count = part.div_ceil(slice);
                    assert_eq!(count, part.div_ceil(slot), "{part} by {slot}");
                    if protocol.is_counted() && slot >= 8 << 10 && (2..=16).contains(&count) {
                        let last = part - (count - 1) * slice;
                        assert!(last + 16 * 512 >= slice, "{part} by {slot}: {last} after {slice}");
                    }
                }
            }
        }
        assert_eq!(slice_bytes(Protocol::Simple, 128 << 10, 120 << 10), 64 << 10);
        assert_eq!(slice_bytes(Protocol::LL128, 128 << 10, 120 << 10), 120 << 10);
    }

    #[test]
    fn what_is_left_keeps_its_order() {
        let work = |tag: u32| P2pWork {
            finished: tag.is_multiple_of(3),
            ..P2pWork::new(true, 0, Protocol::Simple, (core::ptr::null_mut(), 0), tag)
        };
        let mut works: [P2pWork; 8] = core::array::from_fn(|at| work(at as u32));
        let left = unfinished_first(&mut works);
        assert_eq!(works[..left].iter().map(|work| work.tag).collect::<Vec<_>>(), [1, 2, 4, 5, 7]);
        assert!(works[left..].iter().all(|work| work.finished));
        assert_eq!(unfinished_first(&mut works[..left]), left);
        assert_eq!(unfinished_first(&mut []), 0);
    }
}
