//! Primitives over Simple: whole slots at memory speed.

use super::{Proto, Slice};
use crate::conn::{Conns, RecvConn};
use crate::gpu::{Block, How, Stop};
use core::cmp::Ordering;
use core::ptr::null_mut;
use oxccl_shared::abi::{Protocol, SlotHeader};

/// See [`oxccl_shared::proto::simple`].
pub struct Simple;

impl<B: Block> Proto<B> for Simple {
    const PROTOCOL: Protocol = Protocol::Simple;
    const EACH_LOOKS: bool = false;

    #[inline]
    fn poll_header(conn: &RecvConn) -> Option<SlotHeader> {
        conn.poll()
    }

    #[inline(always)]
    unsafe fn transfer(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop> {
        // SAFETY: obligations 1 and 2 are passed on.
        unsafe { reduce_copy(block, conns, slice) };
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
            }
            for &index in slice.recv() {
                conns.recv[index as usize].advance();
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
#[cfg_attr(not(feature = "cpu"), inline(always))]
unsafe fn reduce_copy<B: Block>(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
    let len = slice.len_bytes();
    let mut slots = slice.send().iter().map(|&i| conns.send[i as usize].slot(Protocol::Simple));
    let user = if slice.action.dst { slice.dst } else { null_mut() };
    let (out, out2, stream) = match (user.is_null(), slots.next()) {
        (false, slot) => (user, slot.unwrap_or(null_mut()), slice.stream),
        (true, Some(slot)) => (slot, slots.next().unwrap_or(null_mut()), false),
        (true, None) => return,
    };
    // SAFETY: obligation 1; slots are disjoint from each other and from user memory.
    unsafe { combine_all(block, conns, slice, out, out2, stream) };
    let copied = if slice.action.dst && !out2.is_null() { out2 } else { out };
    for (i, slot) in slots.enumerate() {
        if i == 0 {
            block.meet();
        }
        // SAFETY: both are whole slots or the user's output, valid for `len` and disjoint.
        unsafe { block.map_bulk(slot, null_mut(), copied, len, How::default()) };
    }
}

/// Reduces the contributions in the slice's order into `out` and `out2`.
///
/// # Safety
/// 1. As [`Proto::transfer`]; `out` and `out2` (unless null) are writable for the slice's length and disjoint from slots
///    received; `out` is the slice's `src` or disjoint from it.
#[cfg_attr(not(feature = "cpu"), inline(always))]
unsafe fn combine_all<B: Block>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    out: *mut u8,
    out2: *mut u8,
    stream: bool,
) {
    let (len, recv) = (slice.len_bytes(), slice.recv());
    let slot = |i: usize| conns.recv[recv[i] as usize].slot(Protocol::Simple);
    let (own, post) = (slice.action.src, slice.action.finish);
    match (recv.len(), own) {
        (0, _) => {
            let how = How { pre: own, post, stream };
            // SAFETY: obligation 1.
            unsafe { block.map_bulk(out, out2, slice.src, len, how) };
        }
        (1, false) => {
            // SAFETY: obligation 1.
            unsafe { block.map_bulk(out, out2, slot(0), len, How { pre: false, post, stream }) };
        }
        (1, true) if slice.src_position >= 1 => {
            // SAFETY: obligation 1.
            unsafe {
                block.combine_bulk(
                    out,
                    out2,
                    slot(0).cast_const(),
                    slice.src,
                    len,
                    How { pre: true, post, stream },
                )
            };
        }
        // SAFETY: obligation 1.
        _ => unsafe { combine_many(block, slice, &slot, [out, out2], stream) },
    }
}

/// The general case: two operands per pass.
///
/// The running value is in the first slot received, which belongs to us until it is released: it is in the cache, and
/// the user's output may be the user's input (in place), which may not be combined yet. A barrier of the workers
/// separates the passes: alignments differ from pass to pass, and with them the division of bytes.
///
/// # Safety
/// 1. As [`combine_all`], and there are at least two operands, one of them a slot.
#[cfg_attr(not(feature = "cpu"), inline(always))]
unsafe fn combine_many<B: Block>(
    block: &B,
    slice: &Slice<'_>,
    slot: &dyn Fn(usize) -> *mut u8,
    outs: [*mut u8; 2],
    stream: bool,
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
        unsafe { block.map_bulk(outs[0], null_mut(), acc, len, how) };
        acc = outs[0];
        block.meet();
    }
    for k in 1..total {
        if k > 1 {
            block.meet();
        }
        let (next, pre) = operand(k);
        let last = k + 1 == total;
        let [to, to2] = if last { outs } else { [slot(0), null_mut()] };
        let how = How { pre, post: last && slice.action.finish, stream: last && stream };
        // SAFETY: obligation 1; `acc` and `next` are `to` or disjoint from it.
        unsafe { block.combine_bulk(to, to2, acc, next, len, how) };
        acc = to;
    }
}
