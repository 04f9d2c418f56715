//! Exchanges one message with each of several peers, as [`super::exchange`], in whole LL128 lines: for messages whose
//! time is no longer latency alone.
//!
//! All lines are sent before the first wait, so that the wire is full while the first lines arrive. If the result of
//! a reduction goes to all peers, each line is sent as soon as it is reduced; both hops of such an exchange share one
//! slot, the second after the first, with one credit, one header and one step for both:
//!
//! ```text
//! line 0    1 .. L              L + 1 .. 2 L
//! header    the message to us   what its sender reduced        L: lines of the longest message
//! ```
//!
//! A thread has the same words of each message in all passes, so that the output may overlap the input.
//!
//! The last team sends all headers, checks them and counts all connections. A team stops together, so when threads stop one by one no header
//! of the next message lands in a slot that was not counted, where a peer would take it for one of another operation.

use super::Proto;
use super::exchange::from_behind;
use super::in_order::InRankOrder;
use super::lines::{CALLS, INLINE, LineWords, OwnLines, PLAIN, has_line, load, put, share};
use super::ll128::{Ll128, line};
use super::peers::{CurrentSlot, HELD_MAX, Lengths, Peers, for_peers, rank_of};
use super::span::Span;
use crate::conn::{RecvConn, SendConn};
use crate::gpu::{End, Lines, Stop, wait_for};
use oxccl_shared::abi::{Protocol, Rank, SlotHeader};
use oxccl_shared::proto::ll128::{self, DATA_BYTES, LINE_WORDS};

/// The use of received messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Each peer's message, and our own, is written to its place.
    Keep,
    /// All messages and our own are reduced in rank order, with the post-operation.
    Reduce,
    /// The same, and the result is sent to all peers, whose results are written to their places.
    ReduceAndShare,
}

/// One exchange. A message fits a slot, or half of one if it is shared.
#[derive(Clone, Copy)]
pub struct LineExchange<'a> {
    /// The operation's digest.
    pub tag: u32,
    /// This rank.
    pub rank: Rank,
    /// Connections to send on.
    pub send: &'a [SendConn],
    /// Connections to receive on, in rank order.
    pub recv: &'a [RecvConn],
    /// The input.
    pub src: *const u8,
    /// The part of the input for each peer.
    pub to: Span,
    /// The output.
    pub dst: *mut u8,
    /// The place of each peer's message or result; if reduced, only ours.
    pub from: Span,
    /// Their use.
    pub then: Then,
    /// Whether no proxy is between: then slots need not be given back, since all send to all ([`super::short`]).
    pub is_direct: bool,
}

/// Carries out an exchange with at most `PEERS` peers.
///
/// # Safety
/// 1. `src` is readable and `dst` writable as the spans say; if they overlap, each word of an output message lies on
///    the word of the same number of an input message.
#[inline(always)]
pub unsafe fn exchange_lines<B: Lines, const PEERS: usize>(
    block: &B,
    what: &LineExchange<'_>,
) -> Result<(), Stop> {
    // SAFETY: obligation 1.
    let exchanged = unsafe { lines_and_headers::<B, PEERS>(block, what) };
    // As in `exchange`: nobody goes on without a team that has stopped.
    block.close(exchanged)?;
    finish(block, what);
    block.sync();
    Ok(())
}

/// All of an exchange but what counts it.
///
/// # Safety
/// 1. As [`exchange_lines`].
#[inline(always)]
unsafe fn lines_and_headers<B: Lines, const PEERS: usize>(
    block: &B,
    what: &LineExchange<'_>,
) -> Result<(), Stop> {
    // A team stops together, here and below: the line of a team that has lost a thread would be incomplete.
    if block.any_of_team(wait_for_credits(block, what).is_err()) {
        return Err(Stop);
    }
    let from_all_as = (what.then == Then::Reduce).then_some(what.rank);
    let lengths = Lengths { to: what.to, from: what.from, from_all_as };
    let peers = Peers::<'_, PEERS>::of(Protocol::LL128, what.send, what.recv, lengths);
    send_headers(block, what, &peers);
    // SAFETY: obligation 1, for all passes.
    unsafe {
        // For more peers the code is long enough without a second version, and with calls for words that are not aligned.
        if PEERS > HELD_MAX {
            passes::<B, PEERS, CALLS>(block, what, &peers)?;
        } else if is_plain(what) {
            passes::<B, PEERS, PLAIN>(block, what, &peers)?;
        } else {
            passes::<B, PEERS, INLINE>(block, what, &peers)?;
        }
    }
    if block.any_of_team(check_headers(block, what).is_err()) { Err(Stop) } else { Ok(()) }
}

/// Whether all words of all messages are whole and aligned, so that no word needs a check.
#[inline(always)]
fn is_plain(what: &LineExchange<'_>) -> bool {
    let end = |span: Span| if span.end_bytes == usize::MAX { 0 } else { span.end_bytes };
    let span = |span: Span| span.stride_bytes | span.len_bytes | end(span);
    (what.src.addr() | what.dst.addr() | span(what.to) | span(what.from)).is_multiple_of(8)
}

/// All passes over the words.
///
/// # Safety
/// 1. As [`exchange_lines`].
#[inline(always)]
unsafe fn passes<B: Lines, const PEERS: usize, const WORDS: u8>(
    block: &B,
    what: &LineExchange<'_>,
    peers: &Peers<'_, PEERS>,
) -> Result<(), Stop> {
    let second = what.to.len_bytes.div_ceil(DATA_BYTES);
    // SAFETY: obligation 1.
    unsafe {
        scatter::<B, PEERS, WORDS>(block, what, peers);
        match what.then {
            Then::Keep => {
                keep_own::<B, WORDS>(block, what);
                gather::<B, PEERS, WORDS>(block, what, peers, 0)
            }
            Then::Reduce => reduce::<B, PEERS, WORDS>(block, what, peers, None),
            Then::ReduceAndShare => {
                reduce::<B, PEERS, WORDS>(block, what, peers, Some(second))?;
                gather::<B, PEERS, WORDS>(block, what, peers, second)
            }
        }
    }
}

#[inline(always)]
fn wait_for_credits<B: Lines>(block: &B, what: &LineExchange<'_>) -> Result<(), Stop> {
    for conn in what.send {
        wait_for(block, conn, || conn.poll_credit(Protocol::LL128, block.threads() == 1).then_some(()))?;
    }
    Ok(())
}

#[inline(always)]
fn header(what: &LineExchange<'_>, len_bytes: usize) -> SlotHeader {
    SlotHeader { tag: what.tag, len_bytes: len_bytes as u32 }
}

/// Bytes of the message from `peer`.
#[inline(always)]
fn received_bytes(what: &LineExchange<'_>, peer: Rank) -> usize {
    what.from.len_of(if what.then == Then::Keep { peer } else { what.rank })
}

/// Whether this thread is in the last team, which has no lines of short messages, and does the work beside the lines.
#[inline(always)]
fn is_of_last_team<B: Lines>(block: &B) -> bool {
    block.thread() >= block.threads() - B::TEAM_THREADS
}

/// The first connection that this thread checks and counts; the next is [`Lines::TEAM_THREADS`] further on.
#[inline(always)]
fn first_counted<B: Lines>(block: &B) -> usize {
    if is_of_last_team(block) { from_behind(block) } else { usize::MAX }
}

/// Sends the headers: the last team does, by the threads of its first line.
#[inline(always)]
fn send_headers<B: Lines, const PEERS: usize>(block: &B, what: &LineExchange<'_>, peers: &Peers<'_, PEERS>) {
    if !is_of_last_team(block) {
        return;
    }
    let npeers = what.send.len();
    for_peers!(npeers, i => {
        let mut words = [0; LINE_WORDS];
        if share(block).0 == 0 {
            words[0] = header(what, peers.bytes_to(i)).to_word();
        }
        store(block, peers.lane_to(i), 0, words, block.thread() % B::TEAM_THREADS < B::LINE_THREADS);
    });
}

/// Line `index` of a slot.
#[inline(always)]
fn store<B: Lines>(block: &B, to: CurrentSlot, index: usize, mut words: LineWords, takes_part: bool) {
    let (start, count) = share(block);
    if start + count == LINE_WORDS {
        words[count - 1] = ll128::flag(to.step);
    }
    // SAFETY: messages fit the slot, whose line 0 is there always; the credit makes it ours.
    let line = unsafe { line(to.slot, if takes_part { index } else { 0 }) };
    block.store_line(line, &words, takes_part);
}

/// Our message to `peer`, `len` bytes long, with the pre-operation if it will be reduced.
///
/// # Safety
/// 1. As [`exchange_lines`].
#[inline(always)]
unsafe fn input<B: Lines, const WORDS: u8>(
    block: &B,
    what: &LineExchange<'_>,
    peer: Rank,
    len: usize,
    at: usize,
) -> LineWords {
    // SAFETY: obligation 1.
    let mut words =
        unsafe { load::<B, WORDS>(block, what.src.wrapping_add(what.to.offset_bytes(peer)), len, at) };
    if what.then != Then::Keep {
        block.pre(&mut words[..share(block).1]);
    }
    words
}

/// Sends each peer its message. The words for all peers are loaded before the first are sent.
///
/// # Safety
/// 1. As [`exchange_lines`].
#[inline(always)]
unsafe fn scatter<B: Lines, const PEERS: usize, const WORDS: u8>(
    block: &B,
    what: &LineExchange<'_>,
    peers: &Peers<'_, PEERS>,
) {
    let npeers = what.send.len();
    for (at, _) in OwnLines::of(block, what.to.len_bytes) {
        let mut out = [[0; LINE_WORDS]; PEERS];
        if what.to.stride_bytes == 0 {
            // SAFETY: obligation 1.
            out = [unsafe { input::<B, WORDS>(block, what, what.rank, what.to.len_bytes, at) }; PEERS];
        } else {
            for_peers!(npeers, i => {
                let (peer, len) = (rank_of(what.rank, i), peers.bytes_to(i));
                // SAFETY: obligation 1.
                out[i] = unsafe { input::<B, WORDS>(block, what, peer, len, at) };
            });
        }
        for_peers!(npeers, i => {
            store(block, peers.lane_to(i), 1 + at, out[i], has_line(peers.bytes_to(i), at));
        });
    }
}

/// Copies our own message, if nothing is reduced.
///
/// # Safety
/// 1. As [`exchange_lines`].
#[inline(always)]
unsafe fn keep_own<B: Lines, const WORDS: u8>(block: &B, what: &LineExchange<'_>) {
    let (offset, len) = what.from.mine(what.rank);
    for (at, _) in OwnLines::of(block, len) {
        // SAFETY: obligation 1.
        let words = unsafe { input::<B, WORDS>(block, what, what.rank, len, at) };
        // SAFETY: obligation 1.
        unsafe { put::<B, WORDS>(block, what.dst.wrapping_add(offset), len, at, &words) };
    }
}

/// Reduces all messages to us; with `second`, sends the result to all, in the lines from there on.
///
/// # Safety
/// 1. As [`exchange_lines`].
#[inline(always)]
unsafe fn reduce<B: Lines, const PEERS: usize, const WORDS: u8>(
    block: &B,
    what: &LineExchange<'_>,
    peers: &Peers<'_, PEERS>,
    second: Option<usize>,
) -> Result<(), Stop> {
    let (offset, len) = what.from.mine(what.rank);
    let (dst, count, npeers) = (what.dst.wrapping_add(offset), share(block).1, what.recv.len());
    for (at, takes_part) in OwnLines::of(block, len) {
        // SAFETY: obligation 1.
        let own = unsafe { input::<B, WORDS>(block, what, what.rank, len, at) };
        let arrived = wait_for_lines(block, what, peers, at, [takes_part; PEERS])?;
        let before = what.rank.index();
        let mut acc = block.fold(InRankOrder { own: Some(own), arrived: &arrived, npeers, before, count });
        block.post(&mut acc[..count]);
        // SAFETY: obligation 1.
        unsafe { put::<B, WORDS>(block, dst, len, at, &acc) };
        if let Some(second) = second {
            for_peers!(npeers, i => {
                store(block, peers.lane_to(i), 1 + second + at, acc, takes_part);
            });
        }
    }
    Ok(())
}

/// Writes each peer's message, whose lines start after `skip` others, to its place.
///
/// # Safety
/// 1. As [`exchange_lines`].
#[inline(always)]
unsafe fn gather<B: Lines, const PEERS: usize, const WORDS: u8>(
    block: &B,
    what: &LineExchange<'_>,
    peers: &Peers<'_, PEERS>,
    skip: usize,
) -> Result<(), Stop> {
    let npeers = what.recv.len();
    for (at, _) in OwnLines::of(block, what.from.len_bytes) {
        let mut are_there = [false; PEERS];
        for_peers!(npeers, i => {
            are_there[i] = has_line(peers.bytes_from(i), at);
        });
        let arrived = wait_for_lines(block, what, peers, skip + at, are_there)?;
        for_peers!(npeers, i => {
            let dst = what.dst.wrapping_add(what.from.offset_bytes(rank_of(what.rank, i)));
            // SAFETY: obligation 1.
            unsafe { put::<B, WORDS>(block, dst, peers.bytes_from(i), at, &arrived[i]) };
        });
    }
    Ok(())
}

/// Waits for line `1 + index` from every peer that `sends` one. Each round polls all peers, so that the polls are in
/// flight together; all threads of the team return together.
#[inline(always)]
fn wait_for_lines<B: Lines, const PEERS: usize>(
    block: &B,
    what: &LineExchange<'_>,
    peers: &Peers<'_, PEERS>,
    index: usize,
    sends: [bool; PEERS],
) -> Result<[LineWords; PEERS], Stop> {
    let npeers = what.recv.len();
    let mut arrived = [[0; LINE_WORDS]; PEERS];
    let mut polls = 0u32;
    loop {
        let mut missing = usize::MAX;
        for_peers!(npeers, i => {
            let from = peers.lane_from(i);
            // SAFETY: messages fit the slot, whose line 0 is there always; lines are only touched as words.
            let line = unsafe { line(from.slot, if sends[i] { 1 + index } else { 0 }) };
            if !block.peek_line(line, &mut arrived[i], ll128::flag(from.step), sends[i]) {
                missing = i;
            }
        });
        if !block.any_of_team(missing != usize::MAX) {
            return Ok(arrived);
        }
        polls = polls.saturating_add(1);
        let stop = missing != usize::MAX && look_again(block, what, missing, polls).is_err();
        if block.any_of_team(stop) {
            return Err(Stop);
        }
    }
}

/// Called after `polls` polls in vain for a line of peer `i`, which may be in another operation and send fewer: at
/// intervals its header is polled too.
#[inline(always)]
fn look_again<B: Lines>(block: &B, what: &LineExchange<'_>, i: usize, polls: u32) -> Result<(), Stop> {
    const POLLS_PER_HEADER: u32 = 256;
    let conn = &what.recv[i];
    let expected = header(what, received_bytes(what, conn.peer()));
    if polls.is_multiple_of(POLLS_PER_HEADER)
        && let Some(found) = <Ll128 as Proto<B>>::poll_header(conn)
        && found != expected
    {
        return Err(block.refuse(conn.wait(), expected, found));
    }
    block.idle_at(conn, polls)
}

/// Checks the headers, which arrive with the lines, by one thread for each connection; detects a peer in another
/// operation.
#[inline(always)]
fn check_headers<B: Lines>(block: &B, what: &LineExchange<'_>) -> Result<(), Stop> {
    let mut i = first_counted(block);
    while i < what.recv.len() {
        let conn = &what.recv[i];
        let expected = header(what, received_bytes(what, conn.peer()));
        let found = wait_for(block, conn, || <Ll128 as Proto<B>>::poll_header(conn))?;
        if found != expected {
            return Err(block.refuse(conn.wait(), expected, found));
        }
        i += B::TEAM_THREADS;
    }
    Ok(())
}

/// One thread counts each connection: the one that checked its header.
#[inline(always)]
fn finish<B: Lines>(block: &B, what: &LineExchange<'_>) {
    let mut i = first_counted(block);
    while i < what.send.len() {
        let (recv, send) = (&what.recv[i], &what.send[i]);
        recv.count(received_bytes(what, recv.peer()));
        send.count(what.to.len_of(send.peer()));
        // Threads that read a line with one instruction have all of it when they have its flag.
        let reads_whole = B::LINE_THREADS > 1;
        if what.is_direct && reads_whole {
            recv.advance_unreleased();
            send.advance_after_exchange();
        } else {
            if reads_whole {
                recv.release_flagged();
            } else {
                recv.release();
            }
            recv.advance();
            send.advance_untold();
            send.poll_credit_ahead(Protocol::LL128);
        }
        i += B::TEAM_THREADS;
    }
}
