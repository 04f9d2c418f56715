//! Two ranks and a brief message each way at most: ring and one-shot are the same then, and all that is left to do is known before.

use crate::conn::{RecvConn, SendConn};
use crate::gpu::{Block, How, Stop};
use crate::prims::brief::{self, Brief};
use core::ptr::copy;
use oxccl_shared::abi::{Algorithm, Func, Rank};
use oxccl_shared::algo::mesh::{Keep, Others, Part, Sent};
use oxccl_shared::algo::oneshot as schedule;

/// A collective of two ranks, all of whose blocks are [brief](brief::is_brief) and fit a slot.
#[derive(Clone, Copy, Debug)]
pub struct PairWork {
    /// The function.
    pub func: Func,
    /// The caller's input, as for [`CollWork`](super::CollWork).
    pub src: *const u8,
    /// The caller's output.
    pub dst: *mut u8,
    /// Bytes of a block.
    pub len_bytes: usize,
    /// This rank, 0 or 1.
    pub rank: Rank,
    /// The root of a rooted operation.
    pub root: Rank,
    /// Digest of the call; both ranks must have the same.
    pub tag: u32,
    /// Whether operands are reduced in rank order, or the peer's come first.
    pub by_rank: bool,
}

/// Whether two ranks can run `func` by this algorithm as [`run`] does.
#[inline(always)]
pub const fn is_one_hop(algorithm: Algorithm, func: Func) -> bool {
    match algorithm {
        Algorithm::OneShot => true,
        // An all-reduce goes round the ring twice.
        Algorithm::Ring => !matches!(func, Func::AllReduce),
        _ => false,
    }
}

/// Runs the collective over the connections to and from the other rank.
///
/// # Safety
/// 1. `work.src` and `work.dst` are valid for what `work.func` reads and writes of them.
/// 2. The block is one thread, and its operator changes neither inputs nor results.
#[inline(always)]
pub unsafe fn run<B: Block>(
    block: &B,
    (send, recv): (&SendConn, &RecvConn),
    work: &PairWork,
) -> Result<(), Stop> {
    let [hop] = schedule::hops(work.func, work.rank, work.root);
    let (rank, peer, len) = (work.rank, Rank(1 - work.rank.0), work.len_bytes);
    let message = Brief { tag: work.tag, len_bytes: len };
    let at = |part, whose: Rank| if part == Part::Block { whose.index() * len } else { 0 };
    let Sent::Input(part) = hop.send else { return Ok(()) };
    if hop.to != Others::None {
        // SAFETY: obligations 1 and 2.
        unsafe { brief::send(block, send, message, work.src.wrapping_add(at(part, peer)))? };
        if hop.from == Others::None || brief::asks_both_ways(len) {
            send.ask_for_next_line(len);
        }
    }
    let own = work.src.wrapping_add(at(part, rank));
    match hop.keep {
        Keep::Reduced if hop.takes_own => {
            let dst = work.dst.wrapping_add(at(hop.dst, rank));
            // SAFETY: obligations 1 and 2. In place, what is overwritten has been sent.
            unsafe {
                brief::reduce(block, recv, message, (own, dst), work.by_rank && rank < peer, How::default())?
            };
        }
        Keep::Each if hop.takes_own => {
            // SAFETY: obligation 1; in place both are the same.
            unsafe { copy(own, work.dst.wrapping_add(at(hop.dst, rank)), len) };
        }
        _ => {}
    }
    if hop.keep == Keep::Each && hop.from != Others::None {
        let dst = work.dst.wrapping_add(at(hop.dst, peer));
        // SAFETY: obligations 1 and 2.
        unsafe {
            match hop.to {
                Others::None => brief::recv_one_way(block, recv, message, dst)?,
                _ => brief::recv(block, recv, message, dst)?,
            }
        }
    }
    Ok(())
}
