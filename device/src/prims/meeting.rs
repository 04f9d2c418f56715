//! A meeting of a block with the blocks of the same channel on all peers: nobody returns before all have come. What a rank did before
//! it is before what the others do after it, as far as the rank's fence says so.
//!
//! A meeting is a message without payload to each peer by LL: one line, whose header says the operation and its length. The line goes out without
//! order, so a fence stands before it. It comes in by loads that acquire: a fence in their place would also wait until the lines that we have
//! sent have arrived.
//!
//! ```text
//! all threads   a barrier of the block, if they did anything before
//! thread i      fence     line to peer i        line of peer i, by loads that acquire
//! all threads   a barrier of the block
//! ```

use super::exchange::{clean, line_of, received_line};
use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Awaited, Stop, Wait, Words, wait_for};
use oxccl_shared::abi::{Protocol, SlotHeader};
use oxccl_shared::proto::ll;
use oxccl_shared::sync::fence_release_kernels;

/// Meets all peers. All threads of the block call it, a poster too; what they did before they did before a barrier of the block. `fence`
/// puts it before what the peers do after: [`fence_release`](oxccl_shared::sync::fence_release), or less if they only loaded.
///
/// # Errors
/// [`Stop`], on all threads, if one of them stopped: a peer has not come in time, or is in another operation.
#[inline(always)]
pub fn meeting<B: Words>(
    block: &B,
    conns: Conns<'_>,
    header: SlotHeader,
    fence: impl FnOnce(),
) -> Result<(), Stop> {
    meeting_while(block, conns, header, fence, || ())
}

/// The same, where this kernel has done nothing yet that peers must see, with something to compute while they come.
///
/// # Errors
/// As [`meeting`].
#[inline(always)]
pub fn first_meeting<B: Words, R>(
    block: &B,
    conns: Conns<'_>,
    header: SlotHeader,
    compute: impl FnOnce() -> R,
) -> Result<R, Stop> {
    meeting_while(block, conns, header, fence_release_kernels, compute)
}

#[inline(always)]
fn meeting_while<B: Words, R>(
    block: &B,
    conns: Conns<'_>,
    header: SlotHeader,
    fence: impl FnOnce(),
    compute: impl FnOnce() -> R,
) -> Result<R, Stop> {
    let told = each_of_mine(block, conns.send, fence, |conn| tell(block, conn, header));
    let computed = compute();
    let heard = told.and_then(|()| each_of_mine(block, conns.recv, || (), |conn| hear(block, conn, header)));
    block.close(heard)?;
    Ok(computed)
}

/// Calls `first` if this thread has a connection, then `each` for each one. A thread of a GPU has one at most, so that all lines are in flight
/// at once.
#[inline(always)]
fn each_of_mine<B: Words, C>(
    block: &B,
    conns: &[C],
    first: impl FnOnce(),
    each: impl Fn(&C) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut at = block.thread();
    if !block.works() || at >= conns.len() {
        return Ok(());
    }
    first();
    while let Some(conn) = conns.get(at) {
        each(conn)?;
        at += block.threads();
    }
    Ok(())
}

#[inline(always)]
fn tell<B: Words>(block: &B, conn: &SendConn, header: SlotHeader) -> Result<(), Stop> {
    wait_for(block, conn, || conn.poll_credit(Protocol::LL, true).then_some(()))?;
    let flag = ll::flag(conn.step());
    line_of(conn).store_header(header, flag);
    if ll::must_clean(conn.step()) {
        let lines = conn.layout().ll_slot_bytes as usize / ll::LINE_BYTES;
        clean(conn.slot(Protocol::LL), 1, lines, flag);
    }
    conn.advance_untold();
    conn.count(0);
    Ok(())
}

#[inline(always)]
fn hear<B: Words>(block: &B, conn: &RecvConn, expected: SlotHeader) -> Result<(), Stop> {
    let on = Wait { peer: conn.peer(), what: Awaited::Data };
    let flag = ll::flag(conn.step());
    // ACQUIRE pairs with the fence before `tell`, a RELEASE, on a peer.
    let found = wait_for(block, conn, || received_line(conn).load_header_acquire(flag))?;
    if found != expected {
        return Err(block.refuse(on, expected, found));
    }
    conn.release_flagged();
    conn.advance();
    conn.count(0);
    Ok(())
}
