//! One hop between all ranks over LL128, or all-reduce in two: for sizes between the best ones of [`super::one_hop`]
//! and of a ring.
//!
//! As many bytes as a ring, in one or two message times: each rank sends every other only the data that it needs.

use super::work::CollWork;
use crate::conn::Conns;
use crate::gpu::{Lines, Stop};
use crate::prims::{LineExchange, Span, Then, exchange_lines};
use core::ops::Range;
use oxccl_shared::abi::{Algorithm, Func};
use oxccl_shared::algo::chunk::{self, Loop, Loops};

/// Runs `work` with at most `PEERS` peers: two-shot all-reduce, or one-shot reduce-scatter, all-gather or all-to-all. `conns` are those to and from all
/// others, in rank order. A slice of a two-shot all-reduce fits [half a slot](oxccl_shared::proto::ll128::half_payload_bytes).
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub unsafe fn run<B: Lines, const PEERS: usize>(
    block: &B,
    conns: Conns<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    if work.algorithm == Algorithm::TwoShot {
        for round in Loops::new(work.part.clone(), work.nranks, work.slice_elems, work.grain_elems) {
            // SAFETY: obligation 1: the round lies within the part.
            unsafe { exchange_lines::<B, PEERS>(block, &all_reduce(conns, work, &round))? };
        }
        return Ok(());
    }
    for range in chunk::slices(work.part.clone(), work.slice_elems) {
        // SAFETY: obligation 1: the range lies within the part.
        unsafe { exchange_lines::<B, PEERS>(block, &one_hop(conns, work, range))? };
    }
    Ok(())
}

/// Block r of a round is reduced by rank r, which sends the result to all.
#[inline(always)]
fn all_reduce<'a>(conns: Conns<'a>, work: &CollWork, round: &Loop) -> LineExchange<'a> {
    let size = work.elem_bytes();
    let stride_bytes = round.chunk * size;
    let each = Span { stride_bytes, len_bytes: stride_bytes, end_bytes: (round.end - round.base) * size };
    LineExchange {
        tag: work.tag,
        rank: work.rank,
        send: conns.send,
        recv: conns.recv,
        src: work.src.wrapping_add(round.base * size),
        to: each,
        dst: work.dst.wrapping_add(round.base * size),
        from: each,
        then: Then::ReduceAndShare,
    }
}

/// One hop with elements `range` of every block.
#[inline(always)]
fn one_hop<'a>(conns: Conns<'a>, work: &CollWork, range: Range<usize>) -> LineExchange<'a> {
    let size = work.elem_bytes();
    let (len, at, stride) = (range.len() * size, range.start * size, work.count * size);
    let (same, blocks) = (Span::same(len), Span::blocks(stride, len));
    let (to, from, then) = match work.func {
        Func::ReduceScatter => (blocks, same, Then::Reduce),
        Func::AllGather => (same, blocks, Then::Keep),
        _ => (blocks, blocks, Then::Keep),
    };
    LineExchange {
        tag: work.tag,
        rank: work.rank,
        send: conns.send,
        recv: conns.recv,
        src: work.src.wrapping_add(at),
        to,
        dst: work.dst.wrapping_add(at),
        from,
        then,
    }
}
