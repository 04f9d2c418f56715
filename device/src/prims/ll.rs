//! Primitives over LL: every 8 bytes are seen as they arrive, so reducing starts before the slot is full.

use super::{Proto, Slice, words};
use crate::conn::{Conns, RecvConn};
use crate::gpu::{Awaited, Block, Stop, Wait, wait_for};
use core::borrow::Borrow;
use oxccl_shared::abi::{ConnEnd, Protocol, SlotHeader};
use oxccl_shared::proto::ll::{self, LlLine};

/// See [`oxccl_shared::proto::ll`].
pub struct Ll;

impl Proto for Ll {
    const PROTOCOL: Protocol = Protocol::LL;
    const EACH_WAITS: bool = true;

    #[inline]
    fn poll_header<E: Borrow<ConnEnd>>(conn: &mut RecvConn<E>) -> Option<SlotHeader> {
        // SAFETY: a slot holds at least two lines (ConnLayout::is_valid), and lines are only touched as words.
        unsafe { line(conn.slot(Protocol::LL), 0) }.load_header(ll::flag(conn.step()))
    }

    #[inline(always)]
    unsafe fn transfer<B: Block>(
        block: &B,
        conns: &mut Conns<'_, B::End>,
        slice: &Slice<'_>,
    ) -> Result<(), Stop> {
        let nwords = slice.len_bytes().div_ceil(8);
        if block.posts() {
            for &index in slice.send() {
                let conn = &conns.send[index as usize];
                // SAFETY: as in `poll_header`; the credit makes the slot ours.
                let header = unsafe { line(conn.slot(Protocol::LL), 0) };
                header.store_header(slice.header, ll::flag(conn.step()));
            }
        }
        let batch = B::words().as_ref().len();
        let mut at = block.thread() * batch;
        while at < nwords {
            let n = batch.min(nwords - at);
            // SAFETY: `at + n` words lie within the slice, whose validity is obligation 1 of `transfer`.
            unsafe { transfer_batch(block, conns, slice, at, n)? };
            at += block.threads() * batch;
        }
        Ok(())
    }

    /// Rarely, overwrites the lines that the payload left alone.
    #[inline(always)]
    fn finish<B: Block>(block: &B, conns: &mut Conns<'_, B::End>, slice: &Slice<'_>) {
        let nwords = slice.len_bytes().div_ceil(8);
        for &index in slice.send() {
            let conn = &mut conns.send[index as usize];
            let step = conn.step();
            if ll::must_clean(step) {
                let lines = conn.layout().ll_slot_bytes as usize / ll::LINE_BYTES;
                for i in (1 + nwords + block.thread()..lines).step_by(block.threads()) {
                    // SAFETY: `i` is within the slot, which the credit makes ours.
                    unsafe { line(conn.slot(Protocol::LL), i) }.store(0, ll::flag(step));
                }
            }
            conn.advance();
        }
        for &index in slice.recv() {
            conns.recv[index as usize].release(block.posts());
        }
    }
}

/// Words `at..at + n` of the slice.
///
/// # Safety
/// 1. As [`Proto::transfer`], and `at + n` words lie within the slice.
#[inline(always)]
unsafe fn transfer_batch<B: Block>(
    block: &B,
    conns: &Conns<'_, B::End>,
    slice: &Slice<'_>,
    at: usize,
    n: usize,
) -> Result<(), Stop> {
    let len_bytes = slice.len_bytes() - at * 8;
    let mut own = B::words();
    let own = &mut own.as_mut()[..n];
    if slice.action.src {
        // SAFETY: obligation 1.
        unsafe { words::load(own, slice.src.wrapping_add(at * 8), len_bytes) };
        block.pre(own);
    }
    let mut acc = B::words();
    let acc = &mut acc.as_mut()[..n];
    let recv = slice.recv();
    let own = slice.action.src.then_some((slice.src_position, &*own));
    words::reduce(block, acc, recv.len(), own, |i, out| {
        fetch(block, &conns.recv[recv[i] as usize], at, out)
    })?;
    if slice.action.finish {
        block.post(acc);
    }
    for &index in slice.send() {
        let conn = &conns.send[index as usize];
        let (slot, flag) = (conn.slot(Protocol::LL), ll::flag(conn.step()));
        for (i, word) in acc.iter().enumerate() {
            // SAFETY: the slice fits the slot's payload, so line 1 + at + i exists; the credit makes it ours.
            unsafe { line(slot, 1 + at + i) }.store(*word, flag);
        }
    }
    if slice.action.dst {
        // SAFETY: obligation 1.
        unsafe { words::store(slice.dst.wrapping_add(at * 8), acc, len_bytes) };
    }
    Ok(())
}

/// Waits for words `at..` of the slot that `conn` consumes.
#[inline(always)]
fn fetch<B: Block>(block: &B, conn: &RecvConn<B::End>, at: usize, out: &mut [u64]) -> Result<(), Stop> {
    let (slot, flag) = (conn.slot(Protocol::LL), ll::flag(conn.step()));
    let on = Wait { peer: conn.peer(), what: Awaited::Data };
    for (i, word) in out.iter_mut().enumerate() {
        // SAFETY: the header said that the slice fits, so line 1 + at + i exists; lines are only touched as words.
        let line = unsafe { line(slot, 1 + at + i) };
        *word = wait_for(block, on, || line.load(flag))?;
    }
    Ok(())
}

/// # Safety
/// 1. `slot` points to a live slot of at least `index + 1` LL lines.
#[inline(always)]
unsafe fn line<'a>(slot: *mut u8, index: usize) -> &'a LlLine {
    // SAFETY: obligation 1; any bytes are a valid line.
    unsafe { &*slot.cast::<LlLine>().add(index) }
}
