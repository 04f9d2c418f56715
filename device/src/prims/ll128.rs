//! Primitives over LL128: 120 bytes of each 128-byte line are data.

use super::lines::{INLINE, OwnLines, load, put, share};
use super::{Proto, Slice};
use crate::conn::{Conns, RecvConn};
use crate::gpu::{End, Lines, Stop};
use oxccl_shared::abi::{Protocol, SlotHeader};
use oxccl_shared::proto::ll128::{self, LINE_WORDS, Ll128Line};

/// See [`oxccl_shared::proto::ll128`].
pub struct Ll128;

impl<B: Lines> Proto<B> for Ll128 {
    const PROTOCOL: Protocol = Protocol::LL128;
    const EACH_LOOKS: bool = true;

    /// The line of a team that has lost a thread would be incomplete under a valid flag: a header would be another operation's.
    #[inline(always)]
    fn together(block: &B, waited: Result<(), Stop>) -> Result<(), Stop> {
        if block.any_of_team(waited.is_err()) { Err(Stop) } else { Ok(()) }
    }

    #[inline(always)]
    fn poll_header(conn: &RecvConn) -> Option<SlotHeader> {
        // SAFETY: a slot holds at least two lines (ConnLayout::is_valid), and lines are only touched as words.
        unsafe { line(conn.slot(Protocol::LL128), 0) }.load_header(ll128::flag(conn.step()))
    }

    #[inline(always)]
    unsafe fn transfer(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop> {
        if block.thread() < B::TEAM_THREADS {
            send_headers(block, conns, slice);
        }
        for (at, takes_part) in OwnLines::of(block, slice.len_bytes()) {
            // SAFETY: line `at` lies within the slice if it takes part; its validity is obligation 1 of `transfer`.
            unsafe { transfer_line(block, conns, slice, at, takes_part)? };
        }
        Ok(())
    }

    #[inline(always)]
    fn finish(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
        for &index in slice.send() {
            if block.leads() {
                conns.send[index as usize].advance_untold();
                conns.send[index as usize].count(slice.len_bytes());
                conns.send[index as usize].poll_credit_ahead(Protocol::LL128);
            }
        }
        for &index in slice.recv() {
            // Eight threads that read a line with one instruction have all of it when they have its flag.
            match B::LINE_THREADS {
                _ if !block.posts() => {}
                1 => conns.recv[index as usize].release(),
                _ => conns.recv[index as usize].release_flagged(),
            }
            if block.leads() {
                conns.recv[index as usize].advance();
                conns.recv[index as usize].count(slice.len_bytes());
            }
        }
    }
}

/// Sends the headers: the first team does, by the threads of its first line.
#[inline(always)]
fn send_headers<B: Lines>(block: &B, conns: Conns<'_>, slice: &Slice<'_>) {
    let (start, count) = share(block);
    for &index in slice.send() {
        let conn = &conns.send[index as usize];
        let mut line_words = [0; LINE_WORDS];
        if start == 0 {
            line_words[0] = slice.header.to_word();
        }
        if start + count == LINE_WORDS {
            line_words[count - 1] = ll128::flag(conn.step());
        }
        // SAFETY: as in `poll_header`; the credit makes the slot ours.
        let line = unsafe { line(conn.slot(Protocol::LL128), 0) };
        block.store_line(line, &line_words, block.thread() < B::LINE_THREADS);
    }
}

/// Line `at` of the slice.
///
/// # Safety
/// 1. As [`Proto::transfer`], and `at * DATA_BYTES` is less than the slice's length if the thread `takes_part`.
#[inline(always)]
unsafe fn transfer_line<B: Lines>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    at: usize,
    takes_part: bool,
) -> Result<(), Stop> {
    let (start, count) = share(block);
    let mut own = [0; LINE_WORDS];
    if slice.action.src {
        // SAFETY: obligation 1.
        own = unsafe { load::<B, INLINE>(block, slice.src, slice.len_bytes(), at) };
        block.pre(&mut own[..count]);
    }
    let recv = slice.recv();
    let mut acc = [0; LINE_WORDS];
    let mut scratch = [0; LINE_WORDS];
    let own_at = if slice.action.src { slice.src_position.min(recv.len()) } else { usize::MAX };
    let mut is_empty = true;
    for i in 0..=recv.len() {
        if own_at == i {
            take(block, &mut acc, &own, count, &mut is_empty);
        }
        if i < recv.len() {
            let conn = &conns.recv[recv[i] as usize];
            fetch(block, conn, slice.header, at, takes_part, &mut scratch)?;
            take(block, &mut acc, &scratch, count, &mut is_empty);
        }
    }
    if slice.action.finish {
        block.post(&mut acc[..count]);
    }
    if slice.action.dst {
        // SAFETY: obligation 1.
        unsafe { put::<B, INLINE>(block, slice.dst, slice.len_bytes(), at, &acc) };
    }
    for &index in slice.send() {
        let conn = &conns.send[index as usize];
        if start + count == LINE_WORDS {
            acc[count - 1] = ll128::flag(conn.step());
        }
        // SAFETY: the slice fits the slot's payload, so line 1 + at exists; the credit makes it ours.
        let line = unsafe { line(conn.slot(Protocol::LL128), if takes_part { 1 + at } else { 0 }) };
        block.store_line(line, &acc, takes_part);
    }
    Ok(())
}

/// Takes the next operand.
#[inline(always)]
fn take<B: Lines>(
    block: &B,
    acc: &mut [u64; LINE_WORDS],
    words: &[u64; LINE_WORDS],
    count: usize,
    is_empty: &mut bool,
) {
    if *is_empty {
        *acc = *words;
    } else {
        block.combine(&mut acc[..count], &words[..count]);
    }
    *is_empty = false;
}

/// Waits for line `at` of the slot that `conn` consumes. All threads of the team return together.
#[inline(always)]
fn fetch<B: Lines>(
    block: &B,
    conn: &RecvConn,
    expected: SlotHeader,
    at: usize,
    takes_part: bool,
    out: &mut [u64; LINE_WORDS],
) -> Result<(), Stop> {
    const POLLS_PER_HEADER: u32 = 256;
    let flag = ll128::flag(conn.step());
    // SAFETY: a slot has a line for every 120 bytes of a slice; lines are only touched as words.
    let line = unsafe { line(conn.slot(Protocol::LL128), if takes_part { 1 + at } else { 0 }) };
    let mut polls = 0u32;
    while !block.load_line(line, out, flag, takes_part) {
        polls = polls.saturating_add(1);
        let mut stop = block.idle_at(conn, polls).is_err();
        // A peer in another operation may send fewer lines than we wait for.
        if polls.is_multiple_of(POLLS_PER_HEADER)
            && let Some(found) = <Ll128 as Proto<B>>::poll_header(conn)
            && found != expected
        {
            block.refuse(conn.wait(), expected, found);
            stop = true;
        }
        if block.any_of_team(stop) {
            return Err(Stop);
        }
    }
    Ok(())
}

/// # Safety
/// 1. `slot` points to a live slot of at least `index + 1` LL128 lines.
#[inline(always)]
pub(super) unsafe fn line<'a>(slot: *mut u8, index: usize) -> &'a Ll128Line {
    // SAFETY: obligation 1; any bytes are a valid line.
    unsafe { &*slot.cast::<Ll128Line>().add(index) }
}
