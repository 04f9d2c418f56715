//! Primitives over Simple: whole slots at memory speed.

use super::{Proto, Slice};
#[cfg(feature = "cpu")]
use crate::conn::PING_PONG_MIN_BYTES;
#[cfg(feature = "cpu")]
use crate::conn::SendConn;
use crate::conn::{Conns, RecvConn};
use crate::distance::Fill;
#[cfg(feature = "cpu")]
use crate::distance::LONG_SLOT_BYTES;
use crate::gpu::{Block, How, Stop};
use core::cmp::Ordering;
use core::ptr::null_mut;
use oxccl_shared::abi::{Protocol, SlotHeader};
#[cfg(feature = "cpu")]
use oxccl_shared::algo::Action;

/// See [`oxccl_shared::proto::simple`].
pub struct Simple;

impl<B: Block> Proto<B> for Simple {
    const PROTOCOL: Protocol = Protocol::Simple;
    const EACH_LOOKS: bool = false;
    const IS_PLAIN: bool = true;

    #[inline]
    fn poll_header(conn: &RecvConn) -> Option<SlotHeader> {
        conn.poll()
    }

    #[cfg(feature = "cpu")]
    #[inline]
    fn part_to_send(conn: &SendConn, left: usize) -> usize {
        conn.part(left)
    }

    #[cfg(feature = "cpu")]
    #[inline]
    fn part_received(conn: &RecvConn, left: usize) -> usize {
        conn.part(left)
    }

    #[inline(always)]
    unsafe fn transfer(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop> {
        #[cfg(feature = "cpu")]
        if slice.len_bytes() >= PING_PONG_MIN_BYTES {
            // SAFETY: obligations 1 and 2 are passed on.
            unsafe { reduce_copy_long(block, conns, slice) };
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { reduce_copy::<B, false>(block, conns, slice) };
        Ok(())
    }

    #[inline(always)]
    fn finish(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
        if block.posts() {
            for &index in slice.send() {
                conns.send[index as usize].publish(slice.header);
            }
            for &index in slice.recv() {
                conns.recv[index as usize].release();
            }
        }
        if block.leads() {
            for &index in slice.send() {
                conns.send[index as usize].advance();
                conns.send[index as usize].count(slice.len_bytes());
            }
            for &index in slice.recv() {
                conns.recv[index as usize].advance();
                conns.recv[index as usize].count(slice.len_bytes());
            }
        }
    }
}

/// Combines all inputs in order into all outputs.
///
/// The first two outputs are written in the pass that computes the value; further ones are copied from the first
/// slot.
///
/// # Safety
/// 1. As [`Proto::transfer`].
#[inline(always)]
unsafe fn reduce_copy<B: Block, const LONG: bool>(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
    let len = slice.len_bytes();
    let outbox = if LONG { outbox(block, conns, slice) } else { None };
    let sends = if outbox.is_some() { &[] } else { slice.send() };
    let slots = sends.iter().map(|&i| {
        let conn = &conns.send[i as usize];
        match LONG {
            true => Out { to: conn.message(len), stream: conn.fill(len, false) == Fill::Streamed },
            false => Out { to: conn.short_message(len), stream: false },
        }
    });
    let mut slots = outbox.into_iter().chain(slots);
    let user = if slice.action.dst { slice.dst } else { null_mut() };
    let (out, out2) = match (user.is_null(), slots.next()) {
        (false, slot) => (Out { to: user, stream: slice.stream }, slot.unwrap_or(Out::NONE)),
        (true, Some(slot)) => (slot, slots.next().unwrap_or(Out::NONE)),
        (true, None) => return,
    };
    // SAFETY: obligation 1; slots are disjoint from each other and from user memory.
    unsafe { combine_all::<B, LONG>(block, conns, slice, [out, out2]) };
    // What has bypassed the caches takes long to read again.
    let is_second_better =
        if slice.action.dst { !out2.stream || out.stream } else { out.stream && !out2.stream };
    let copied = if !out2.to.is_null() && is_second_better { out2.to } else { out.to };
    for (i, slot) in slots.enumerate() {
        if i == 0 {
            block.meet();
        }
        // SAFETY: both are whole slots or the user's output, valid for `len` and disjoint.
        unsafe {
            block.map_bulk(slot.to, null_mut(), copied, len, How { stream: slot.stream, ..How::default() })
        };
    }
}

/// One place for what goes to several peers of this machine.
#[inline(always)]
fn outbox<B: Block>(_block: &B, _conns: Conns<'_>, _slice: &Slice<'_>) -> Option<Out> {
    #[cfg(feature = "cpu")]
    // More threads would each decide.
    if _slice.send().len() > 1 && _block.threads() == 1 {
        let to = SendConn::in_outbox(_conns.send, _slice.send(), _slice.len_bytes());
        return to.map(|to| Out { to, stream: false });
    }
    None
}

/// As [`reduce_copy`], for slices whose slots are chosen and filled with more care. Apart, so that short ones take few instructions.
///
/// Now and then the time is taken of the only slot, after all else, so that what goes into it is in our caches. The ranks of a chain send nothing
/// that is theirs alone. Only so do they find out how far the next one is.
///
/// # Safety
/// 1. As [`Proto::transfer`].
#[cfg(feature = "cpu")]
#[inline(never)]
unsafe fn reduce_copy_long<B: Block>(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
    let len = slice.len_bytes();
    // More threads would each decide.
    let may_time = len >= LONG_SLOT_BYTES && block.threads() == 1;
    if may_time && let (&[index], Some(value)) = (slice.send(), value_apart(block, conns, slice)) {
        let conn = &conns.send[index as usize];
        let to = conn.message(len);
        if conn.fill(len, true) == Fill::Timed {
            // SAFETY: obligation 1.
            let from = unsafe { combine_apart(block, conns, slice, value) };
            // SAFETY: obligation 1; a slot is disjoint from others and from user memory.
            conn.time(len, || unsafe { block.map_bulk(to, null_mut(), from, len, How::default()) });
            return;
        }
    }
    // SAFETY: obligation 1.
    unsafe { reduce_copy::<B, true>(block, conns, slice) };
}

/// Where the value of a slice lies, if not in the slot that it goes into.
#[cfg(feature = "cpu")]
#[derive(Clone, Copy)]
enum Value {
    /// There, as it came.
    Whole(*const u8),
    /// It is computed there.
    Reduced(*mut u8),
}

/// Where that is, if there is such a place that our caches have.
#[cfg(feature = "cpu")]
#[inline(always)]
fn value_apart<B: Block>(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Option<Value> {
    let slot = |index: u16| conns.recv[index as usize].message(slice.len_bytes());
    let (Action { dst, finish, .. }, is_changed) = (slice.action, block.has_pre());
    match (slice.recv(), slice.action.src) {
        ([], true) if !finish && !is_changed => Some(Value::Whole(slice.src)),
        (&[index], false) if !finish && dst => Some(Value::Whole(slot(index))),
        ([_, ..], true) if dst => (!slice.stream).then_some(Value::Reduced(slice.dst)),
        (&[first, ..], true) if !is_changed => Some(Value::Reduced(running(conns, slice, &|_| slot(first)))),
        _ => None,
    }
}

/// Carries out a slice except for its only slot. Returns where the value lies then.
///
/// # Safety
/// 1. As [`Proto::transfer`]; `value` is the [`value_apart`].
#[cfg(feature = "cpu")]
#[cold]
unsafe fn combine_apart<B: Block>(block: &B, conns: Conns<'_>, slice: &Slice<'_>, value: Value) -> *const u8 {
    match value {
        Value::Whole(from) if slice.action.dst => {
            let how = How { stream: slice.stream, ..How::default() };
            // SAFETY: obligation 1. What a network brings where it belongs, and not to the slot, are messages, which are not sent on.
            unsafe { block.map_bulk(slice.dst, null_mut(), from, slice.len_bytes(), how) };
            from
        }
        Value::Whole(from) => from,
        Value::Reduced(to) => {
            // SAFETY: obligation 1: the user's output, or the first operand itself.
            unsafe { combine_all::<B, true>(block, conns, slice, [Out { to, stream: false }, Out::NONE]) };
            to
        }
    }
}

/// Where a result goes, or null.
#[derive(Clone, Copy)]
struct Out {
    to: *mut u8,
    /// Whether its stores bypass the caches.
    stream: bool,
}

impl Out {
    const NONE: Out = Out { to: null_mut(), stream: false };
}

/// Reduces the contributions in the slice's order into both outputs.
///
/// # Safety
/// 1. As [`Proto::transfer`]; the outputs, of which the second may be null, are writable for the slice's length and disjoint from slots
///    received; the first is the slice's `src` or disjoint from it. Or it is what [`running`] returns, and the operator has no pre-operation.
#[inline(always)]
unsafe fn combine_all<B: Block, const LONG: bool>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    outs: [Out; 2],
) {
    let (len, recv) = (slice.len_bytes(), slice.recv());
    let [Out { to: out, stream }, Out { to: out2, stream: stream2 }] = outs;
    let slot = |i: usize| {
        let conn = &conns.recv[recv[i] as usize];
        if LONG { conn.message(len) } else { conn.short_message(len) }
    };
    let (own, post) = (slice.action.src, slice.action.finish);
    match (recv.len(), own) {
        (0, _) => {
            let how = How { pre: own, post, stream, stream2 };
            // SAFETY: obligation 1.
            unsafe { block.map_bulk(out, out2, slice.src, len, how) };
        }
        (1, false) => {
            let how = How { pre: false, post, stream, stream2 };
            // SAFETY: obligation 1.
            unsafe { block.map_bulk(out, out2, slot(0), len, how) };
        }
        (1, true) if slice.src_position >= 1 => {
            let how = How { pre: true, post, stream, stream2 };
            // SAFETY: obligation 1.
            unsafe { block.combine_bulk(out, out2, slot(0).cast_const(), slice.src, len, how) };
        }
        (1, true) if !block.has_pre() => {
            let how = How { pre: false, post, stream, stream2 };
            // SAFETY: obligation 1.
            unsafe { block.combine_bulk(out, out2, slice.src, slot(0).cast_const(), len, how) };
        }
        // SAFETY: obligation 1.
        _ => unsafe { combine_many(block, conns, slice, &slot, outs) },
    }
}

/// Where a running value is kept: in the first slot received, which is ours until it is released. What came in an outbox is not; its slot is empty
/// then.
#[inline(always)]
fn running(_conns: Conns<'_>, _slice: &Slice<'_>, slot: &dyn Fn(usize) -> *mut u8) -> *mut u8 {
    #[cfg(feature = "cpu")]
    if let Some(&first) = _slice.recv().first()
        && let Some(empty) = _conns.recv[first as usize].slot_beside_outbox()
    {
        return empty;
    }
    slot(0)
}

/// The general case: two operands per pass.
///
/// The running value is where [`running`] says, in the first slot received as a rule: it is in the cache, and
/// the user's output may be the user's input (in place), which may not be combined yet. A barrier of the workers
/// separates the passes: alignments differ from pass to pass, and with them the division of bytes.
///
/// # Safety
/// 1. As [`combine_all`], and there are at least two operands, one of them a slot.
#[cfg_attr(not(feature = "cpu"), inline(always))]
unsafe fn combine_many<B: Block>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    slot: &dyn Fn(usize) -> *mut u8,
    outs: [Out; 2],
) {
    let (len, own) = (slice.len_bytes(), slice.action.src);
    let total = slice.recv().len() + own as usize;
    // Operand k in reduction order, and whether it is the user's own.
    let operand = |k: usize| match (own, k.cmp(&slice.src_position)) {
        (true, Ordering::Equal) => (slice.src, true),
        (true, Ordering::Greater) => (slot(k - 1).cast_const(), false),
        _ => (slot(k).cast_const(), false),
    };
    let (mut acc, first_is_own) = operand(0);
    if first_is_own && block.has_pre() {
        let how = How { pre: true, ..How::default() };
        // SAFETY: obligation 1: `out` is the user's input or disjoint from it.
        unsafe { block.map_bulk(outs[0].to, null_mut(), acc, len, how) };
        acc = outs[0].to;
        block.meet();
    }
    for k in 1..total {
        if k > 1 {
            block.meet();
        }
        let (next, pre) = operand(k);
        let last = k + 1 == total;
        let [out, out2] =
            if last { outs } else { [Out { to: running(conns, slice, slot), ..Out::NONE }, Out::NONE] };
        let post = last && slice.action.finish;
        let how = How { pre, post, stream: out.stream, stream2: out2.stream };
        // SAFETY: obligation 1; `acc` and `next` are `out` or disjoint from it.
        unsafe { block.combine_bulk(out.to, out2.to, acc, next, len, how) };
        acc = out.to;
    }
}
