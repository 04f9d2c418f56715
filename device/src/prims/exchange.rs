//! Exchanges one message with each of several peers at once: the step of all one-hop algorithms.
//!
//! It uses LL, so that the words of all peers can be in flight at once: where a poll takes long, as on a GPU, polling
//! several peers takes no longer than polling one. The `i`-th thread from the end counts connection `i`, and sends
//! and checks its header. It is always the same thread, so that when threads stop none polls a slot that none has
//! counted.

use super::in_order::InRankOrder;
use super::ll::{Ll, line};
use super::peers::{Lengths, Peers, for_peers, rank_of};
use super::span::Span;
use super::{Proto, words};
use crate::conn::{RecvConn, SendConn};
use crate::gpu::{End, Stop, Words, wait_for};
use oxccl_shared::abi::{Protocol, Rank, SlotHeader};
use oxccl_shared::algo::mesh::Keep;
use oxccl_shared::proto::ll::{self, LlLine};

/// One exchange. A message fits a slot.
#[derive(Clone, Copy)]
pub struct Exchange<'a> {
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
    /// The place of each peer's message.
    pub from: Span,
    /// Their use.
    pub keep: Keep,
    /// Whether our own part of the input is written to the output too.
    pub takes_own: bool,
    /// Whether all ranks send to all and receive from all, and no proxy is between: then slots need not be given back ([`super::short`]).
    pub is_mutual: bool,
}

/// Carries out an exchange with at most `PEERS` peers.
///
/// # Safety
/// 1. `src` is readable and `dst` writable as the spans say; if they overlap, each thread's words do not (see [`Span`]).
#[inline(always)]
pub unsafe fn exchange<B: Words, const PEERS: usize>(block: &B, what: &Exchange<'_>) -> Result<(), Stop> {
    // SAFETY: obligation 1.
    let exchanged = unsafe { words_and_headers::<B, PEERS>(block, what) };
    // Nobody goes on to another exchange without a thread that has stopped: its connections are not counted, so words of the next message would
    // lie among those of this one, and a peer that reads later would take them for these.
    block.close(exchanged)?;
    finish(block, what);
    block.sync();
    Ok(())
}

/// All of an exchange but what counts it.
///
/// # Safety
/// 1. As [`exchange`].
#[inline(always)]
unsafe fn words_and_headers<B: Words, const PEERS: usize>(
    block: &B,
    what: &Exchange<'_>,
) -> Result<(), Stop> {
    for conn in what.send {
        wait_for(block, conn, || conn.poll_credit(Protocol::LL, block.threads() == 1).then_some(()))?;
    }
    send_headers(block, what);
    let from_all_as = (what.keep == Keep::Reduced).then_some(what.rank);
    let lengths = Lengths { to: what.to, from: what.from, from_all_as };
    let peers = Peers::<'_, PEERS>::of(Protocol::LL, what.send, what.recv, lengths);
    let mine = what.from.len_of(what.rank);
    let own_len = what.to.len_of(what.rank);
    let longest = what.to.len_bytes.max(what.from.len_bytes).max(mine).max(own_len);
    let mut at = block.thread();
    while at < longest.div_ceil(8) {
        // SAFETY: obligation 1.
        unsafe { exchange_word(block, what, &peers, at)? };
        at += block.threads();
    }
    check_headers(block, what)
}

#[inline(always)]
fn header(what: &Exchange<'_>, len_bytes: usize) -> SlotHeader {
    SlotHeader { tag: what.tag, len_bytes: len_bytes as u32 }
}

/// Numbers threads from the last one: short messages leave the last threads without words, so they do the work beside
/// the words.
#[inline(always)]
pub(super) fn from_behind<B: Words>(block: &B) -> usize {
    block.threads() - 1 - block.thread()
}

#[inline(always)]
fn send_headers<B: Words>(block: &B, what: &Exchange<'_>) {
    let mut i = from_behind(block);
    while i < what.send.len() {
        let conn = &what.send[i];
        // SAFETY: every slot has a line 0; the credit makes it ours.
        let line = unsafe { line(conn.slot(Protocol::LL), 0) };
        line.store_header(header(what, what.to.len_of(conn.peer())), ll::flag(conn.step()));
        i += block.threads();
    }
}

/// Checks the headers, which arrive with the words; detects a peer in another operation.
#[inline(always)]
fn check_headers<B: Words>(block: &B, what: &Exchange<'_>) -> Result<(), Stop> {
    let mut i = from_behind(block);
    while i < what.recv.len() {
        let conn = &what.recv[i];
        let expected = header(what, received_bytes(what, conn.peer()));
        let found = wait_for(block, conn, || <Ll<1> as Proto<B>>::poll_header(conn))?;
        if found != expected {
            return Err(block.refuse(conn.wait(), expected, found));
        }
        i += block.threads();
    }
    Ok(())
}

#[inline(always)]
fn received_bytes(what: &Exchange<'_>, peer: Rank) -> usize {
    match what.keep {
        Keep::Each => what.from.len_of(peer),
        Keep::Reduced => what.from.len_of(what.rank),
    }
}

#[inline(always)]
fn finish<B: Words>(block: &B, what: &Exchange<'_>) {
    let mut i = from_behind(block);
    while i < what.send.len() || i < what.recv.len() {
        if i < what.recv.len() {
            let conn = &what.recv[i];
            if what.is_mutual {
                conn.advance_unreleased();
            } else {
                conn.release_flagged();
                conn.advance();
            }
            conn.count(received_bytes(what, conn.peer()));
        }
        if i < what.send.len() {
            let conn = &what.send[i];
            if ll::must_clean(conn.step()) {
                let used = 1 + what.to.len_of(conn.peer()).div_ceil(8);
                let lines = conn.layout().ll_slot_bytes as usize / ll::LINE_BYTES;
                clean(conn.slot(Protocol::LL), used, lines, ll::flag(conn.step()));
            }
            conn.count(what.to.len_of(conn.peer()));
            if what.is_mutual {
                conn.advance_after_exchange();
            } else {
                conn.advance_untold();
                conn.poll_credit_ahead(Protocol::LL);
            }
        }
        i += block.threads();
    }
}

/// The header's line of the current slot, which a credit has made ours.
#[inline(always)]
pub(super) fn line_of(conn: &SendConn) -> &LlLine {
    // SAFETY: every slot has a line 0, and lines are only touched as words.
    unsafe { line(conn.slot(Protocol::LL), 0) }
}

/// The line of a received message that holds its header.
#[inline(always)]
pub(super) fn received_line(conn: &RecvConn) -> &LlLine {
    // SAFETY: as in `line_of`.
    unsafe { line(conn.slot(Protocol::LL), 0) }
}

/// Overwrites old messages beyond this one: the lines from `used` on.
#[cold]
pub(super) fn clean(slot: *mut u8, used: usize, lines: usize, flag: u32) {
    for i in used..lines {
        // SAFETY: `i` is within the slot, which the credit makes ours.
        unsafe { line(slot, i) }.store(0, flag);
    }
}

/// Word `at` of every message.
///
/// # Safety
/// 1. As [`exchange`].
#[inline(always)]
unsafe fn exchange_word<B: Words, const PEERS: usize>(
    block: &B,
    what: &Exchange<'_>,
    peers: &Peers<'_, PEERS>,
    at: usize,
) -> Result<(), Stop> {
    let nsend = what.send.len();
    // SAFETY: obligation 1.
    let own = unsafe { input(block, what, what.rank, what.to.len_of(what.rank), at) };
    let mut values = [own; PEERS];
    if what.to.stride_bytes != 0 {
        for_peers!(nsend, i => {
            // SAFETY: obligation 1.
            values[i] = unsafe { input(block, what, rank_of(what.rank, i), peers.bytes_to(i), at) };
        });
    }
    for_peers!(nsend, i => {
        if at * 8 < peers.bytes_to(i) {
            let to = peers.lane_to(i);
            // SAFETY: a slot has a line for every word of a message; the credit makes it ours.
            unsafe { line(to.slot, 1 + at) }.store(values[i], ll::flag(to.step));
        }
    });
    let arrived = await_word(block, what, peers, at)?;
    // SAFETY: obligation 1.
    unsafe { keep(block, what, peers, at, own, &arrived) };
    Ok(())
}

/// Word `at` of the message to `peer`, `len` bytes long. Data that is only forwarded is no operand: the pre-operation
/// was applied in the first hop.
///
/// # Safety
/// 1. As [`exchange`].
#[inline(always)]
unsafe fn input<B: Words>(block: &B, what: &Exchange<'_>, peer: Rank, len: usize, at: usize) -> u64 {
    if at * 8 >= len {
        return 0;
    }
    let from = what.src.wrapping_add(what.to.offset_bytes(peer) + at * 8);
    // SAFETY: obligation 1: the word lies within the message.
    let mut word = [unsafe { words::load_one(from, len - at * 8) }];
    if what.keep == Keep::Reduced {
        block.pre(&mut word);
    }
    word[0]
}

/// Waits for word `at` of every message that has one.
#[inline(always)]
fn await_word<B: Words, const PEERS: usize>(
    block: &B,
    what: &Exchange<'_>,
    peers: &Peers<'_, PEERS>,
    at: usize,
) -> Result<[[u64; 1]; PEERS], Stop> {
    let npeers = what.recv.len();
    let mut looked = [[0; 2]; PEERS];
    let mut polls = 0u32;
    // Each round polls all peers, arrived or not: the polls are in flight together.
    loop {
        let mut missing = usize::MAX;
        for_peers!(npeers, i => {
            if at * 8 < peers.bytes_from(i) {
                // SAFETY: a slot has a line for every word of a message; lines are only touched as words.
                looked[i] = unsafe { line(peers.lane_from(i).slot, 1 + at) }.peek();
            }
        });
        for_peers!(npeers, i => {
            let is_there = LlLine::open(looked[i], ll::flag(peers.lane_from(i).step)).is_some();
            if !is_there && at * 8 < peers.bytes_from(i) {
                missing = i;
            }
        });
        if missing == usize::MAX {
            break;
        }
        polls = polls.saturating_add(1);
        let conn = &what.recv[missing];
        look_again(block, conn, header(what, received_bytes(what, conn.peer())), polls)?;
    }
    Ok(looked.map(|line| [LlLine::data(line)]))
}

/// Writes word `at` of every message to its place.
///
/// # Safety
/// 1. As [`exchange`].
#[inline(always)]
unsafe fn keep<B: Words, const PEERS: usize>(
    block: &B,
    what: &Exchange<'_>,
    peers: &Peers<'_, PEERS>,
    at: usize,
    own: u64,
    arrived: &[[u64; 1]; PEERS],
) {
    let (npeers, len) = (what.recv.len(), what.from.len_of(what.rank));
    if what.keep == Keep::Each {
        for_peers!(npeers, i => {
            let len = peers.bytes_from(i);
            if at * 8 < len {
                // SAFETY: obligation 1.
                unsafe { output(what, rank_of(what.rank, i), at, len, arrived[i][0]) };
            }
        });
        if what.takes_own && at * 8 < len {
            // SAFETY: obligation 1.
            unsafe { output(what, what.rank, at, len, own) };
        }
        return;
    }
    if at * 8 >= len {
        return;
    }
    let own = what.takes_own.then_some([own]);
    let before = what.rank.index();
    let mut acc = block.fold(InRankOrder { own, arrived, npeers, before, count: 1 });
    block.post(&mut acc);
    // SAFETY: obligation 1: reduced, there is one place.
    unsafe { words::store_one(what.dst.wrapping_add(at * 8), acc[0], len - at * 8) };
}

/// Called after `polls` polls in vain. A peer in another operation may send fewer words than we wait for, so at
/// intervals its header is polled too.
#[inline(always)]
fn look_again<B: Words>(block: &B, conn: &RecvConn, expected: SlotHeader, polls: u32) -> Result<(), Stop> {
    const POLLS_PER_HEADER: u32 = 256;
    if polls.is_multiple_of(POLLS_PER_HEADER)
        && let Some(found) = <Ll<1> as Proto<B>>::poll_header(conn)
        && found != expected
    {
        return Err(block.refuse(conn.wait(), expected, found));
    }
    block.idle_at(conn, polls)
}

/// # Safety
/// 1. As [`exchange`].
#[inline(always)]
unsafe fn output(what: &Exchange<'_>, rank: Rank, at: usize, len: usize, word: u64) {
    let to = what.dst.wrapping_add(what.from.offset_bytes(rank) + at * 8);
    // SAFETY: obligation 1: the word lies within the message's place.
    unsafe { words::store_one(to, word, len - at * 8) };
}
