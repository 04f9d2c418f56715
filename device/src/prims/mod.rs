//! Layer: device / prims.
//! Takes: connections (`conn`), a block (`gpu`) and one slice of an operation.
//! Gives: the primitives: send, recv, recv_reduce_send, ... each an [`Action`] carried out over one protocol.
//! Never: knows the order in which an algorithm calls them.
//!
//! One function per protocol does them all: a primitive is the combination of *receive?*, *read the user's input?*,
//! *send?* and *write the user's output?* that an [`Action`] spells out, and fan-in and fan-out are lists of connections.

#[cfg(feature = "cpu")]
pub mod brief;
mod bulk;
mod exchange;
mod exchange_lines;
mod in_order;
mod lines;
mod ll;
mod ll128;
mod meeting;
mod peers;
mod short;
mod simple;
mod span;
mod unaligned;
mod words;

pub use bulk::Bulk;
pub(crate) use bulk::{Operands, Pre, end_tiles, move_tile};
pub use exchange::{Exchange, exchange};
pub use exchange_lines::{LineExchange, Then, exchange_lines};
pub use ll::Ll;
pub use ll128::Ll128;
pub use meeting::{first_meeting, meeting};
pub use short::{Place, Places, Short, clean, served, short};
pub use simple::Simple;
pub use span::Span;

pub(crate) use peers::{for_peers, rank_of};

use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Block, End, Stop, wait_for};
use oxccl_shared::abi::{ConnLayout, Protocol, SlotHeader};
use oxccl_shared::algo::Action;
use oxccl_shared::proto;

/// One slice: at most one slot of each connection named.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    /// What to do.
    pub action: Action,
    /// The operation's tag and the bytes of this slice, as every slot's header must say.
    pub header: SlotHeader,
    /// Connections received from, in reduction order, when `action.recv`.
    pub recv: &'a [u16],
    /// Connections sent to when `action.send`.
    pub send: &'a [u16],
    /// Where the user's own input stands in the reduction order: before `recv[src_position]`, or last.
    pub src_position: usize,
    /// The user's input, when `action.src`.
    pub src: *const u8,
    /// The user's output, when `action.dst`.
    pub dst: *mut u8,
    /// The user's output is too large to stay in a cache.
    pub stream: bool,
}

impl Slice<'_> {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.header.len_bytes as usize
    }
    #[inline]
    fn recv(&self) -> &[u16] {
        if self.action.recv { self.recv } else { &[] }
    }
    #[inline]
    fn send(&self) -> &[u16] {
        if self.action.send { self.send } else { &[] }
    }
}

/// A protocol as the kernels of a machine use it; which machines it asks for is in the bounds of its implementation.
pub trait Proto<B: Block> {
    /// Its number.
    const PROTOCOL: Protocol;

    /// Whether every thread looks for the peers' data itself, because what it looks at are the lines that it reads anyway.
    /// Otherwise one looks for all.
    const EACH_LOOKS: bool;

    /// Whether a whole slot is one ordinary copy, so that a message of one needs no walk over slices.
    const IS_PLAIN: bool = false;

    /// Whether this thread compares headers with what we expect, if each looks for data itself.
    #[inline(always)]
    fn checks(block: &B) -> bool {
        block.leads()
    }

    /// What a wait comes to for this thread, if each looks for data itself: threads that move lines together stop together.
    #[inline(always)]
    fn together(_block: &B, waited: Result<(), Stop>) -> Result<(), Stop> {
        waited
    }

    /// The header of the slot to be consumed next, once it is there.
    fn poll_header(conn: &RecvConn) -> Option<SlotHeader>;

    /// Moves and reduces one slice. Run by workers.
    ///
    /// # Safety
    /// 1. The slice's `src` and `dst` are valid for its length as its action uses them, and the same or disjoint.
    /// 2. Every connection sent to has a credit; every connection received from has a full slot of as many bytes, unless
    ///    [`Self::EACH_LOOKS`].
    unsafe fn transfer(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop>;

    /// The poster tells the peers that slots are full or empty, the first worker counts them, when all threads have moved
    /// their parts.
    fn finish(block: &B, conns: Conns<'_>, slice: &Slice<'_>);

    /// Carries out one slice: waits for the peers, refuses one that is in another operation, moves the data, hands the slots on.
    ///
    /// # Safety
    /// 1. The slice's `src` and `dst` are valid for its length as its action uses them, and the same or disjoint; where data moves by
    ///    [bulk copies](Bulk) both are 16-byte aligned.
    #[cfg_attr(not(feature = "cpu"), inline(always))]
    unsafe fn run(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop>
    where
        Self: Sized,
    {
        // SAFETY: obligation 1 is passed on.
        unsafe { run_steps::<B, Self>(block, conns, slice) }
    }

    /// Ends an operation, of which this thread's part ended so: returns when all that its slices hand on is handed on.
    #[inline(always)]
    fn close(_block: &B, _conns: Conns<'_>, ran: Result<(), Stop>) -> Result<(), Stop> {
        ran
    }

    /// Payload bytes of one slot.
    fn payload_bytes(layout: &ConnLayout) -> usize {
        proto::payload_bytes(Self::PROTOCOL, layout)
    }

    /// Bytes of the next slice of a message of which so many are left, for which there is a credit.
    #[inline(always)]
    fn part_to_send(conn: &SendConn, left: usize) -> usize {
        left.min(Self::payload_bytes(conn.layout()))
    }

    /// As [`Self::part_to_send`] of its sender, of a slice that has come.
    #[inline(always)]
    fn part_received(conn: &RecvConn, left: usize) -> usize {
        left.min(Self::payload_bytes(conn.layout()))
    }
}

/// Carries out one slice.
///
/// # Safety
/// 1. As [`Proto::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub unsafe fn run_slice<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
) -> Result<(), Stop> {
    // SAFETY: obligation 1.
    unsafe { P::run(block, conns, slice) }
}

/// All threads of the block in step: they wait, move the data, and meet before the slots are handed on.
///
/// # Safety
/// 1. As [`Proto::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
unsafe fn run_steps<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
) -> Result<(), Stop> {
    if P::EACH_LOOKS {
        P::together(block, wait_credits::<B, P>(block, conns, slice, block.threads() == 1))?;
        // SAFETY: obligation 1 is passed on; there are credits; such blocks have no posters.
        unsafe { P::transfer(block, conns, slice)? };
        // Behind the data, because it has arrived by now; who came with other data is found out all the same.
        let checked = if P::checks(block) { check_headers::<B, P>(block, conns, slice) } else { Ok(()) };
        P::together(block, checked)?;
        block.sync();
        P::finish(block, conns, slice);
        block.sync();
    } else {
        let mut moved = block.lead(|| {
            check_headers::<B, P>(block, conns, slice)?;
            wait_credits::<B, P>(block, conns, slice, true)
        });
        if moved.is_ok() && block.works() {
            // SAFETY: obligation 1 is passed on; there are slots and credits.
            moved = unsafe { P::transfer(block, conns, slice) };
        }
        block.close(moved)?;
        P::finish(block, conns, slice);
    }
    Ok(())
}

/// Waits until everything that the slice receives from is full, and compares what it is full of with what we expect.
#[inline(always)]
fn check_headers<B: Block, P: Proto<B>>(block: &B, conns: Conns<'_>, slice: &Slice<'_>) -> Result<(), Stop> {
    for &index in slice.recv() {
        let conn = &conns.recv[index as usize];
        let found = wait_for(block, conn, || P::poll_header(conn))?;
        if found != slice.header {
            return Err(block.refuse(conn.wait(), slice.header, found));
        }
    }
    Ok(())
}

/// Waits until everything that the slice sends to is empty; remembers what it saw if no other thread of the block may.
#[inline(always)]
fn wait_credits<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    slice: &Slice<'_>,
    remembers: bool,
) -> Result<(), Stop> {
    for &index in slice.send() {
        let conn = &conns.send[index as usize];
        wait_for(block, conn, || conn.poll_credit(P::PROTOCOL, remembers).then_some(()))?;
    }
    Ok(())
}

/// As [`wait_for`], for lines of a slot: a peer in another operation may send fewer than we wait for, so now and then we look
/// at the header too.
#[inline(always)]
fn wait_for_line<B: Block, P: Proto<B>, T>(
    block: &B,
    conn: &RecvConn,
    expected: SlotHeader,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, Stop> {
    const POLLS_PER_HEADER: u32 = 256;
    let mut polls = 0u32;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        polls = polls.saturating_add(1);
        if polls.is_multiple_of(POLLS_PER_HEADER)
            && let Some(found) = P::poll_header(conn)
            && found != expected
        {
            return Err(block.refuse(conn.wait(), expected, found));
        }
        block.idle_at(conn, polls)?;
    }
}
