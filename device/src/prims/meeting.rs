//! A meeting of a block with the blocks of the same channel on all peers: nobody returns before all have come. What a rank did before
//! it is seen by the others after it.
//!
//! A meeting is a message without payload to each peer by LL: one line, whose header says the operation and its length. The line goes out and comes in without
//! order, so fences stand beside it, where a step of Simple would have a release and an acquire:
//!
//! ```text
//! all threads   a barrier of the block, if they did anything before
//! thread i      fence     line to peer i        line of peer i     fence
//! all threads   a barrier of the block
//! ```

use super::exchange::{clean, line_of};
use super::{Ll, Proto};
use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Awaited, Stop, Wait, Words, wait_for};
use oxccl_shared::abi::{Protocol, SlotHeader};
use oxccl_shared::proto::ll;
use oxccl_shared::sync::{fence_acquire, fence_release};

/// Meets all peers. All threads of the block call it, a poster too; what they did before they did before a barrier of the block.
///
/// # Errors
/// [`Stop`], on all threads, if one of them stopped: a peer has not come in time, or is in another operation.
#[inline(always)]
pub fn meeting<B: Words>(block: &B, conns: Conns<'_>, header: SlotHeader) -> Result<(), Stop> {
    let met = if block.works() { meet_mine(block, conns, header) } else { Ok(()) };
    block.close(met)
}

/// A thread's peers: every thread of a GPU has one at most, so that all lines are in flight at once.
#[inline(always)]
fn meet_mine<B: Words>(block: &B, conns: Conns<'_>, header: SlotHeader) -> Result<(), Stop> {
    let mine = || (block.thread()..conns.send.len()).step_by(block.threads());
    if mine().next().is_none() {
        return Ok(());
    }
    // RELEASE pairs with ACQUIRE below, on a peer: what this block did before.
    fence_release();
    for i in mine() {
        tell(block, &conns.send[i], header)?;
    }
    for i in mine() {
        hear(block, &conns.recv[i], header)?;
    }
    // ACQUIRE pairs with RELEASE above, on a peer.
    fence_acquire();
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
    let found = wait_for(block, conn, || <Ll<1> as Proto<B>>::poll_header(conn))?;
    if found != expected {
        return Err(block.refuse(on, expected, found));
    }
    conn.release_flagged();
    conn.advance();
    conn.count(0);
    Ok(())
}
