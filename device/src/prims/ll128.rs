//! Primitives over LL128: 120 bytes of each 128-byte line are data.

use super::{Proto, Slice, wait_for_line, words};
use crate::conn::{Conns, RecvConn};
use crate::gpu::{Block, Stop};
use oxccl_shared::abi::{Protocol, SlotHeader};
use oxccl_shared::proto::ll128::{self, DATA_BYTES, DATA_WORDS, Ll128Line};

/// See [`oxccl_shared::proto::ll128`].
pub struct Ll128;

impl Proto for Ll128 {
    const PROTOCOL: Protocol = Protocol::LL128;
    const EACH_LOOKS: bool = true;

    #[inline(always)]
    fn poll_header(conn: &RecvConn) -> Option<SlotHeader> {
        // SAFETY: a slot holds at least two lines (ConnLayout::is_valid), and lines are only touched as words.
        unsafe { line(conn.slot(Protocol::LL128), 0) }.load_header(ll128::flag(conn.step()))
    }

    #[inline(always)]
    unsafe fn transfer<B: Block>(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop> {
        let nlines = slice.len_bytes().div_ceil(DATA_BYTES);
        if block.leads() {
            for &index in slice.send() {
                let conn = &conns.send[index as usize];
                // SAFETY: as in `poll_header`; the credit makes the slot ours.
                let header = unsafe { line(conn.slot(Protocol::LL128), 0) };
                header.store_header(slice.header, ll128::flag(conn.step()));
            }
        }
        for at in (block.thread()..nlines).step_by(block.threads()) {
            // SAFETY: line `at` lies within the slice, whose validity is obligation 1 of `transfer`.
            unsafe { transfer_line(block, conns, slice, at)? };
        }
        Ok(())
    }

    #[inline(always)]
    fn finish<B: Block>(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
        for &index in slice.send() {
            if block.leads() {
                conns.send[index as usize].advance();
                conns.send[index as usize].poll_credit_ahead();
            }
        }
        for &index in slice.recv() {
            if block.posts() {
                conns.recv[index as usize].release();
            }
            if block.leads() {
                conns.recv[index as usize].advance();
            }
        }
    }
}

/// Line `at` of the slice.
///
/// # Safety
/// 1. As [`Proto::transfer`], and `at * DATA_BYTES` is less than the slice's length.
#[inline(always)]
unsafe fn transfer_line<B: Block>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    at: usize,
) -> Result<(), Stop> {
    let len_bytes = (slice.len_bytes() - at * DATA_BYTES).min(DATA_BYTES);
    let n = len_bytes.div_ceil(8);
    let mut own = [0; DATA_WORDS];
    let own = &mut own[..n];
    if slice.action.src {
        // SAFETY: obligation 1.
        unsafe { words::load(own, slice.src.wrapping_add(at * DATA_BYTES), len_bytes) };
        block.pre(own);
    }
    let mut acc = [0; DATA_WORDS];
    let acc = &mut acc[..n];
    let recv = slice.recv();
    let own = slice.action.src.then_some((slice.src_position, &*own));
    words::reduce(block, acc, recv.len(), own, |i, out| {
        fetch(block, &conns.recv[recv[i] as usize], slice.header, at, out)
    })?;
    if slice.action.finish {
        block.post(acc);
    }
    for &index in slice.send() {
        let conn = &conns.send[index as usize];
        // SAFETY: the slice fits the slot's payload, so line 1 + at exists; the credit makes it ours.
        unsafe { line(conn.slot(Protocol::LL128), 1 + at) }.store(acc, ll128::flag(conn.step()));
    }
    if slice.action.dst {
        // SAFETY: obligation 1.
        unsafe { words::store(slice.dst.wrapping_add(at * DATA_BYTES), acc, len_bytes) };
    }
    Ok(())
}

/// Waits for line `at` of the slot that `conn` consumes.
#[inline(always)]
fn fetch<B: Block>(
    block: &B,
    conn: &RecvConn,
    expected: SlotHeader,
    at: usize,
    out: &mut [u64],
) -> Result<(), Stop> {
    let flag = ll128::flag(conn.step());
    // SAFETY: a slot has a line for every 120 bytes of a slice; lines are only touched as words.
    let line = unsafe { line(conn.slot(Protocol::LL128), 1 + at) };
    wait_for_line::<B, Ll128, _>(block, conn, expected, || line.load(out, flag).then_some(()))
}

/// # Safety
/// 1. `slot` points to a live slot of at least `index + 1` LL128 lines.
#[inline(always)]
unsafe fn line<'a>(slot: *mut u8, index: usize) -> &'a Ll128Line {
    // SAFETY: obligation 1; any bytes are a valid line.
    unsafe { &*slot.cast::<Ll128Line>().add(index) }
}
