//! Primitives over LL: each 8 bytes are visible as they arrive, so the reduction starts before the slot is full.

use super::{Proto, Slice, wait_for_line, words};
use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Stop, Words};
use oxccl_shared::abi::{Protocol, SlotHeader};
use oxccl_shared::proto::ll::{self, LlLine};

/// See [`oxccl_shared::proto::ll`]. Up to `FAN_IN` peers' words are polled at once, before any is needed: where a
/// poll takes long, as on a GPU, several take no longer than one.
pub struct Ll<const FAN_IN: usize>;

impl<B: Words, const FAN_IN: usize> Proto<B> for Ll<FAN_IN> {
    const PROTOCOL: Protocol = Protocol::LL;
    const EACH_LOOKS: bool = true;

    /// The last thread: in a short slice it has no data to wait for, so that its poll, which takes as long as one for
    /// data, takes no extra time.
    #[inline(always)]
    fn checks(block: &B) -> bool {
        block.thread() + 1 == block.threads()
    }

    #[inline(always)]
    fn poll_header(conn: &RecvConn) -> Option<SlotHeader> {
        // SAFETY: a slot holds at least two lines (ConnLayout::is_valid), and lines are only touched as words.
        unsafe { line(conn.slot(Protocol::LL), 0) }.load_header(ll::flag(conn.step()))
    }

    #[inline(always)]
    unsafe fn transfer(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop> {
        let nwords = slice.len_bytes().div_ceil(8);
        let batch = B::batch().as_ref().len();
        let mut at = block.thread() * batch;
        while at < nwords {
            let n = batch.min(nwords - at);
            if batch == 1 && FAN_IN > 1 {
                // SAFETY: word `at` lies within the slice, whose validity is obligation 1 of `transfer`.
                unsafe { transfer_word::<B, FAN_IN>(block, conns, slice, at)? };
            } else {
                // SAFETY: `at + n` words lie within the slice, whose validity is obligation 1 of `transfer`.
                unsafe { transfer_batch::<B, FAN_IN>(block, conns, slice, at, n)? };
            }
            at += block.threads() * batch;
        }
        // The first word is in flight: the headers may follow.
        if block.leads() {
            for &index in slice.send() {
                let conn = &conns.send[index as usize];
                // SAFETY: as in `poll_header`; the credit makes the slot ours.
                let header = unsafe { line(conn.slot(Protocol::LL), 0) };
                header.store_header(slice.header, ll::flag(conn.step()));
            }
        }
        // Here and not in `finish`, where the first worker counts steps while other threads still read them.
        for &index in slice.send() {
            clean(block, &conns.send[index as usize], 1 + nwords);
        }
        Ok(())
    }

    #[inline(always)]
    fn finish(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
        for &index in slice.send() {
            let conn = &conns.send[index as usize];
            if block.leads() {
                conn.advance_untold();
                conn.count(slice.len_bytes());
                conn.poll_credit_ahead(Protocol::LL);
            }
        }
        for &index in slice.recv() {
            let conn = &conns.recv[index as usize];
            if block.posts() {
                conn.release_flagged();
            }
            if block.leads() {
                conn.advance();
                conn.count(slice.len_bytes());
            }
        }
    }
}

/// In the steps that must clean, overwrites old messages beyond this one: the lines from `used` on.
#[inline(always)]
fn clean<B: Words>(block: &B, conn: &SendConn, used: usize) {
    let step = conn.step();
    if ll::must_clean(step) {
        let lines = conn.layout().ll_slot_bytes as usize / ll::LINE_BYTES;
        for i in (used + block.thread()..lines).step_by(block.threads()) {
            // SAFETY: `i` is within the slot, which the credit makes ours.
            unsafe { line(conn.slot(Protocol::LL), i) }.store(0, ll::flag(step));
        }
    }
}

/// Words `at..at + n` of the slice.
///
/// # Safety
/// 1. As [`Proto::transfer`], and `at + n` words lie within the slice.
#[inline(always)]
unsafe fn transfer_batch<B: Words, const FAN_IN: usize>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    at: usize,
    n: usize,
) -> Result<(), Stop> {
    let len_bytes = slice.len_bytes() - at * 8;
    let mut own = B::batch();
    let own = &mut own.as_mut()[..n];
    if slice.action.src {
        // SAFETY: obligation 1.
        unsafe { words::load(own, slice.src.wrapping_add(at * 8), len_bytes) };
        block.pre(own);
    }
    let mut acc = B::batch();
    let acc = &mut acc.as_mut()[..n];
    let recv = slice.recv();
    let own = slice.action.src.then_some((slice.src_position, &*own));
    words::reduce(block, acc, recv.len(), own, |i, out| {
        fetch::<B, FAN_IN>(block, &conns.recv[recv[i] as usize], slice.header, at, out)
    })?;
    // SAFETY: obligation 1.
    unsafe { deliver(block, conns, slice, at, acc) };
    Ok(())
}

/// Word `at` of the slice, with all peers polled at once.
///
/// # Safety
/// 1. As [`Proto::transfer`], and word `at` lies within the slice.
#[inline(always)]
unsafe fn transfer_word<B: Words, const FAN_IN: usize>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    at: usize,
) -> Result<(), Stop> {
    let recv = slice.recv();
    if recv.len() > FAN_IN {
        // SAFETY: obligation 1.
        return unsafe { transfer_batch::<B, FAN_IN>(block, conns, slice, at, 1) };
    }
    let mut arrived = [None; FAN_IN];
    for (i, arrived) in arrived.iter_mut().enumerate() {
        if i < recv.len() {
            let conn = &conns.recv[recv[i] as usize];
            // SAFETY: a slot has a line for every word of a slice; lines are only touched as words.
            *arrived = unsafe { line(conn.slot(Protocol::LL), 1 + at) }.load(ll::flag(conn.step()));
        }
    }
    let mut own = [0];
    if slice.action.src {
        // SAFETY: obligation 1.
        unsafe { words::load(&mut own, slice.src.wrapping_add(at * 8), slice.len_bytes() - at * 8) };
        block.pre(&mut own);
    }
    let own_position = if slice.action.src { slice.src_position.min(recv.len()) } else { usize::MAX };
    let (mut acc, mut is_first) = ([0], true);
    let mut take = |word: [u64; 1]| {
        if is_first {
            acc = word;
        } else {
            block.combine(&mut acc, &word);
        }
        is_first = false;
    };
    for (i, arrived) in arrived.into_iter().enumerate() {
        if own_position == i {
            take(own);
        }
        if i < recv.len() {
            let mut word = [0];
            match arrived {
                Some(early) => word[0] = early,
                None => {
                    fetch::<B, FAN_IN>(block, &conns.recv[recv[i] as usize], slice.header, at, &mut word)?
                }
            }
            take(word);
        }
    }
    if own_position == FAN_IN {
        take(own);
    }
    // SAFETY: obligation 1.
    unsafe { deliver(block, conns, slice, at, &mut acc) };
    Ok(())
}

/// Applies the post-operation to a value, sends it and writes it to the output.
///
/// # Safety
/// 1. As [`Proto::transfer`], and `at + acc.len()` words lie within the slice.
#[inline(always)]
unsafe fn deliver<B: Words>(block: &B, conns: Conns<'_>, slice: &Slice<'_>, at: usize, acc: &mut [u64]) {
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
        let len_bytes = slice.len_bytes() - at * 8;
        // SAFETY: obligation 1.
        unsafe { words::store(slice.dst.wrapping_add(at * 8), acc, len_bytes) };
    }
}

/// Waits for words `at..` of the slot that `conn` consumes.
#[inline(always)]
fn fetch<B: Words, const FAN_IN: usize>(
    block: &B,
    conn: &RecvConn,
    expected: SlotHeader,
    at: usize,
    out: &mut [u64],
) -> Result<(), Stop> {
    let (slot, flag) = (conn.slot(Protocol::LL), ll::flag(conn.step()));
    for (i, word) in out.iter_mut().enumerate() {
        // SAFETY: a slot has a line for every word of a slice; lines are only touched as words.
        let line = unsafe { line(slot, 1 + at + i) };
        *word = wait_for_line::<B, Ll<FAN_IN>, _>(block, conn, expected, || line.load(flag))?;
    }
    Ok(())
}

/// # Safety
/// 1. `slot` points to a live slot of at least `index + 1` LL lines.
#[inline(always)]
pub(super) unsafe fn line<'a>(slot: *mut u8, index: usize) -> &'a LlLine {
    // SAFETY: obligation 1; any bytes are a valid line.
    unsafe { &*slot.cast::<LlLine>().add(index) }
}
