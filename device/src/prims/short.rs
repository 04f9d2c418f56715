//! Exchanges one message with every peer at once, as [`super::exchange`], in a kernel that does nothing else: what comes before and after
//! is as short as the exchange allows.
//!
//! ```text
//! every thread     loads its first words; finds the slots, each for itself: all loads are under way at once
//!                  stores the words to all peers; the last threads store the headers
//! barrier          all have found the slots: from now on the steps may be counted
//! every thread     waits for the peers' words, reduces, stores the outcome; goes on with its next words, if it has more
//! last threads     check the headers, count the step
//! ```
//! Lines and flags are those of [`super::exchange`]: a peer cannot tell.
//!
//! # Why slots are not given back
//! Each rank sends to each other rank and receives from it, in one exchange. The producer of a connection, at step `s`, thereby learns that
//! its consumer has read all steps before `s`, and remembers that (`ProducerCursor::after_exchange`) instead of reading `head`:
//!
//! 1. A peer's message of this operation was stored by the peer's kernel of this operation, after that kernel had seen the one before
//!    end (`KernelMachine::await_previous`, or the stream's order). Kernels of a communicator run one after the other.
//! 2. A kernel ends only when it has read every message of its operation. So the peer has read all that we sent in operations before
//!    this one. Since this exchange is all that this operation sends on the connection, that is every step before `s`.
//! 3. Those reads are complete: each returned a value whose flag was checked, or ended with its kernel. No later store changes what they
//!    returned, so our stores to these slots need no order beyond having seen the peer's message.
//!
//! Only kernels run at both ends: a proxy at the other end of a connection would see no `head`, and the peer's message would say nothing
//! of what the proxy has read. Where this is so is the host's knowledge (`KERNEL_DIRECT`).
//!
//! `head` falls behind. Every other primitive writes it as a count of all steps, so the first step that is consumed by another one brings
//! it up to date; a producer trusts the larger of what it has read and what it remembers, and waits for its credit where neither suffices. What it waits
//! for is the step after the last of ours, at the latest seven steps before its own: an earlier hop, as the deadlock argument of `algo::mesh` asks.
//!
//! # Why no barrier at the end
//! Only the thread that counts a connection's step writes its cursor, which all threads have read before the barrier. What threads read
//! from slots and write to the output concerns nobody else in this kernel.

use super::in_order::InRankOrder;
use super::peers::{HELD_MAX, for_peers, rank_of};
use super::words;
use crate::gpu::{Awaited, Stop, Wait, Words, wait_for};
use oxccl_shared::abi::{Rank, SlotHeader, Step};
use oxccl_shared::algo::mesh::Keep;
use oxccl_shared::proto::ll::{self, LlLine};

/// An exchange of messages of one length with all ranks but ours.
#[derive(Clone, Copy)]
pub struct Short {
    /// The operation's digest.
    pub tag: u32,
    /// This rank.
    pub rank: Rank,
    /// Number of peers.
    pub npeers: usize,
    /// Length of each message. It fits a slot.
    pub len_bytes: usize,
    /// The input.
    pub src: *const u8,
    /// From the message to one rank to that to the next; 0 if all get the same.
    pub to_stride_bytes: usize,
    /// The output.
    pub dst: *mut u8,
    /// The same for what is kept of each.
    pub from_stride_bytes: usize,
    /// The use of messages.
    pub keep: Keep,
}

impl Short {
    /// Whether the registers of a thread of so many hold what it needs: later words for each of many peers do not fit.
    #[inline(always)]
    pub fn has_room<const PEERS: usize>(&self, threads: usize) -> bool {
        PEERS <= HELD_MAX || self.to_stride_bytes == 0 || self.len_bytes <= threads * 8
    }
}

/// Where a connection's current message lies. Seven peers' places fit a GPU's registers, and little more.
#[derive(Clone, Copy)]
pub struct Place {
    slot: *mut u8,
    flag: u32,
}

impl Place {
    /// None yet.
    pub const NONE: Place = Place { slot: core::ptr::null_mut(), flag: 0 };

    /// The slot of a step.
    #[inline(always)]
    pub fn at(slot: *mut u8, step: Step) -> Place {
        Place { slot, flag: ll::flag(step) }
    }

    /// # Safety
    /// 1. The slot is live and has so many lines.
    #[inline(always)]
    unsafe fn line<'a>(&self, index: usize) -> &'a LlLine {
        // SAFETY: obligation 1. Slots are only accessed as words.
        unsafe { &*self.slot.cast::<LlLine>().wrapping_add(index) }
    }
}

/// Slots by peer, in rank order.
#[derive(Clone, Copy)]
pub struct Places<const PEERS: usize> {
    /// To write.
    pub to: [Place; PEERS],
    /// To read.
    pub from: [Place; PEERS],
}

/// Which peer this thread does the work beside the words for, if it is less than their number: threads are taken from the last one on,
/// because short messages leave those without words.
#[inline(always)]
pub fn served<B: Words>(block: &B) -> usize {
    block.threads() - 1 - block.thread()
}

/// Carries out an exchange with at most `PEERS` peers. `find` gives the slots, once the producer's are empty.
///
/// # Safety
/// 1. `src` is readable and `dst` writable for all messages; if they overlap, a word of the output lies on the word of the same number of
///    the input.
/// 2. The block has as many threads as there are peers, at least, and [room](Short::has_room). What `find` returns are the connections' current slots, the same for all threads, each
///    with room for the message.
#[inline(always)]
pub unsafe fn short<B: Words, const PEERS: usize>(
    block: &B,
    what: &Short,
    find: impl FnOnce() -> Result<Places<PEERS>, Stop>,
) -> Result<(), Stop> {
    let mut at = block.thread();
    // SAFETY: obligation 1.
    let mut input = unsafe { inputs::<B, PEERS, true>(block, what, at) };
    let places = find()?;
    send_headers(block, what, &places);
    // SAFETY: obligation 2.
    unsafe { send(what, &places, at, &input) };
    block.sync();
    while at * 8 < what.len_bytes {
        let arrived = await_words(block, what, &places, at)?;
        // SAFETY: obligation 1.
        unsafe { put(block, what, at, input.0, &arrived) };
        at += block.threads();
        // SAFETY: obligation 1.
        input = unsafe { inputs::<B, PEERS, false>(block, what, at) };
        // SAFETY: obligation 2.
        unsafe { send(what, &places, at, &input) };
    }
    check_headers(block, what, &places)
}

/// In the steps that must clean, overwrites old messages beyond the one to `to`. The thread that serves the peer calls it.
///
/// # Safety
/// 1. The slot is `slot_bytes` long.
#[cold]
#[inline(never)]
pub unsafe fn clean(to: Place, len_bytes: usize, slot_bytes: usize) {
    let (lines, used) = (slot_bytes / ll::LINE_BYTES, 1 + len_bytes.div_ceil(8));
    for index in used..lines {
        // SAFETY: obligation 1; the message has no such line.
        unsafe { to.line(index) }.store(0, to.flag);
    }
}

#[inline(always)]
fn header(what: &Short) -> SlotHeader {
    SlotHeader { tag: what.tag, len_bytes: what.len_bytes as u32 }
}

#[inline(always)]
fn send_headers<B: Words, const PEERS: usize>(block: &B, what: &Short, places: &Places<PEERS>) {
    let npeers = what.npeers;
    for_peers!(npeers, i => {
        if served(block) == i {
            // SAFETY: every slot has a line 0.
            unsafe { places.to[i].line(0) }.store_header(header(what), places.to[i].flag);
        }
    });
}

/// Checks the headers, which arrive with the words; detects a peer in another operation.
#[inline(always)]
fn check_headers<B: Words, const PEERS: usize>(
    block: &B,
    what: &Short,
    places: &Places<PEERS>,
) -> Result<(), Stop> {
    let npeers = what.npeers;
    for_peers!(npeers, i => {
        if served(block) == i {
            let on = Wait { peer: rank_of(what.rank, i), what: Awaited::Data };
            // SAFETY: every slot has a line 0.
            let line = unsafe { places.from[i].line(0) };
            let found = wait_for(block, &on, || line.load_header(places.from[i].flag))?;
            if found != header(what) {
                return Err(block.refuse(on, header(what), found));
            }
        }
    });
    Ok(())
}

/// Our own word `at`, and that for each peer; of a thread's `FIRST` words, or of later ones.
///
/// # Safety
/// 1. As [`short`].
#[inline(always)]
unsafe fn inputs<B: Words, const PEERS: usize, const FIRST: bool>(
    block: &B,
    what: &Short,
    at: usize,
) -> (u64, [u64; PEERS]) {
    if at * 8 >= what.len_bytes {
        return (0, [0; PEERS]);
    }
    // SAFETY: obligation 1.
    let own = unsafe { input(block, what, what.rank, at) };
    let mut values = [own; PEERS];
    if what.to_stride_bytes != 0 && (FIRST || PEERS <= HELD_MAX) {
        let npeers = what.npeers;
        for_peers!(npeers, i => {
            // SAFETY: obligation 1.
            values[i] = unsafe { input(block, what, rank_of(what.rank, i), at) };
        });
    }
    (own, values)
}

/// # Safety
/// 1. As [`short`]; the message has a word `at`.
#[inline(always)]
unsafe fn input<B: Words>(block: &B, what: &Short, peer: Rank, at: usize) -> u64 {
    let from = what.src.wrapping_add(peer.index() * what.to_stride_bytes + at * 8);
    // SAFETY: obligation 1.
    let mut word = [unsafe { words::load_one(from, what.len_bytes - at * 8) }];
    if what.keep == Keep::Reduced {
        block.pre(&mut word);
    }
    word[0]
}

/// Stores word `at` to every peer, if messages have it.
///
/// # Safety
/// 1. As obligation 2 of [`short`].
#[inline(always)]
unsafe fn send<const PEERS: usize>(
    what: &Short,
    places: &Places<PEERS>,
    at: usize,
    input: &(u64, [u64; PEERS]),
) {
    if at * 8 >= what.len_bytes {
        return;
    }
    let npeers = what.npeers;
    for_peers!(npeers, i => {
        // SAFETY: obligation 1: a slot has a line for every word of a message.
        unsafe { places.to[i].line(1 + at) }.store(input.1[i], places.to[i].flag);
    });
}

/// Waits for word `at` of every message.
#[inline(always)]
fn await_words<B: Words, const PEERS: usize>(
    block: &B,
    what: &Short,
    places: &Places<PEERS>,
    at: usize,
) -> Result<[[u64; 1]; PEERS], Stop> {
    let npeers = what.npeers;
    let mut looked = [[0; 2]; PEERS];
    let mut polls = 0u32;
    // Each round polls all peers, arrived or not: the polls are in flight together.
    loop {
        let mut missing = usize::MAX;
        for_peers!(npeers, i => {
            // SAFETY: a slot has a line for every word of a message.
            looked[i] = unsafe { places.from[i].line(1 + at) }.peek();
        });
        for_peers!(npeers, i => {
            if LlLine::open(looked[i], places.from[i].flag).is_none() {
                missing = i;
            }
        });
        if missing == usize::MAX {
            return Ok(looked.map(|line| [LlLine::data(line)]));
        }
        polls = polls.saturating_add(1);
        look_again(block, what, places, missing, polls)?;
    }
}

/// Called after `polls` polls in vain. A peer in another operation may send fewer words than we wait for, so at intervals its header is
/// polled too.
#[inline(always)]
fn look_again<B: Words, const PEERS: usize>(
    block: &B,
    what: &Short,
    places: &Places<PEERS>,
    missing: usize,
    polls: u32,
) -> Result<(), Stop> {
    const POLLS_PER_HEADER: u32 = 256;
    let on = Wait { peer: rank_of(what.rank, missing), what: Awaited::Data };
    if polls.is_multiple_of(POLLS_PER_HEADER) {
        let npeers = what.npeers;
        let mut from = Place::NONE;
        for_peers!(npeers, i => {
            if i == missing {
                from = places.from[i];
            }
        });
        // SAFETY: every slot has a line 0, and one of the peers is missing.
        let found = unsafe { from.line(0) }.load_header(from.flag);
        if let Some(found) = found.filter(|found| *found != header(what)) {
            return Err(block.refuse(on, header(what), found));
        }
    }
    block.idle(on, polls)
}

/// Writes word `at` of every message, or what becomes of them, to its place.
///
/// # Safety
/// 1. As [`short`]; messages have a word `at`.
#[inline(always)]
unsafe fn put<B: Words, const PEERS: usize>(
    block: &B,
    what: &Short,
    at: usize,
    own: u64,
    arrived: &[[u64; 1]; PEERS],
) {
    let (npeers, left) = (what.npeers, what.len_bytes - at * 8);
    let to = |rank: Rank| what.dst.wrapping_add(rank.index() * what.from_stride_bytes + at * 8);
    if what.keep == Keep::Each {
        for_peers!(npeers, i => {
            // SAFETY: obligation 1.
            unsafe { words::store_one(to(rank_of(what.rank, i)), arrived[i][0], left) };
        });
        // SAFETY: obligation 1.
        unsafe { words::store_one(to(what.rank), own, left) };
        return;
    }
    let before = what.rank.index();
    let mut acc = block.fold(InRankOrder { own: Some([own]), arrived, npeers, before, count: 1 });
    block.post(&mut acc);
    // SAFETY: obligation 1: reduced, there is one place.
    unsafe { words::store_one(what.dst.wrapping_add(at * 8), acc[0], left) };
}
