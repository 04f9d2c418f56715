//! Every collective in one hop, or all-reduce in two, as exchanges with all peers at once: for messages whose time is latency.

use super::work::CollWork;
use crate::conn::Conns;
use crate::gpu::{Stop, Words};
use crate::prims::{Exchange, Keep, Span, exchange};
use core::ops::Range;
use oxccl_shared::abi::{Algorithm, Func};
use oxccl_shared::algo::chunk::{self, Loops};

/// Runs `work`, one-shot or two-shot, with at most `PEERS` peers; `conns` are those to and from all others, in rank order.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub unsafe fn run<B: Words, const PEERS: usize>(
    block: &B,
    conns: Conns<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    let walk = OneHop { work, conns };
    if work.algorithm == Algorithm::TwoShot {
        for round in Loops::new(work.part.clone(), work.nranks, work.slice_elems, work.grain_elems) {
            // SAFETY: obligation 1: the round lies within the part.
            unsafe { walk.two_hops::<B, PEERS>(block, round.base, round.chunk, round.end)? };
        }
        return Ok(());
    }
    if work.part.is_empty() && work.func == Func::Barrier {
        // SAFETY: no memory is accessed.
        return unsafe { exchange::<B, PEERS>(block, &walk.args(0..0)) };
    }
    for range in chunk::slices(work.part.clone(), work.slice_elems) {
        // SAFETY: obligation 1: the range lies within the part.
        unsafe { exchange::<B, PEERS>(block, &walk.args(range))? };
    }
    Ok(())
}

struct OneHop<'a> {
    work: &'a CollWork,
    conns: Conns<'a>,
}

impl OneHop<'_> {
    /// The exchange of elements `range` of every block.
    #[inline(always)]
    fn args(&self, range: Range<usize>) -> Exchange<'_> {
        let work = self.work;
        let size = work.elem_bytes();
        let (len, at, stride) = (range.len() * size, range.start * size, work.count * size);
        let is_root = work.rank == work.root;
        let all = Exchange {
            tag: work.tag,
            rank: work.rank,
            send: self.conns.send,
            recv: self.conns.recv,
            src: work.src.wrapping_add(at),
            to: Span::same(len),
            dst: work.dst.wrapping_add(at),
            from: Span::same(len),
            keep: Keep::Reduced,
            takes_own: true,
        };
        match work.func {
            Func::ReduceScatter => Exchange { to: Span::blocks(stride, len), ..all },
            Func::AllGather => Exchange { from: Span::blocks(stride, len), keep: Keep::Each, ..all },
            Func::AllToAll => Exchange {
                to: Span::blocks(stride, len),
                from: Span::blocks(stride, len),
                keep: Keep::Each,
                ..all
            },
            Func::Broadcast if is_root => Exchange { recv: &[], keep: Keep::Each, ..all },
            Func::Broadcast => Exchange {
                send: &[],
                recv: &self.conns.recv[self.root()],
                keep: Keep::Each,
                takes_own: false,
                to: Span::same(0),
                ..all
            },
            Func::Reduce if is_root => Exchange { send: &[], ..all },
            Func::Reduce => Exchange {
                send: &self.conns.send[self.root()],
                recv: &[],
                from: Span::same(0),
                takes_own: false,
                ..all
            },
            _ => all,
        }
    }

    /// The root's connection, if we are not the root.
    #[inline(always)]
    fn root(&self) -> Range<usize> {
        let index = (self.work.root - u32::from(self.work.root > self.work.rank)) as usize;
        index..index + 1
    }

    /// Rank r reduces block r of the elements from `base`, and then sends it to all.
    ///
    /// # Safety
    /// 1. As [`run`].
    #[inline(always)]
    unsafe fn two_hops<B: Words, const PEERS: usize>(
        &self,
        block: &B,
        base: usize,
        chunk: usize,
        end: usize,
    ) -> Result<(), Stop> {
        let work = self.work;
        let size = work.elem_bytes();
        let stride_bytes = chunk * size;
        let each = Span { stride_bytes, len_bytes: stride_bytes, end_bytes: (end - base) * size };
        let mine = each.mine(work.rank);
        let scatter = Exchange {
            tag: work.tag,
            rank: work.rank,
            send: self.conns.send,
            recv: self.conns.recv,
            src: work.src.wrapping_add(base * size),
            to: each,
            dst: work.dst.wrapping_add(base * size + mine.0),
            from: Span::same(mine.1),
            keep: Keep::Reduced,
            takes_own: true,
        };
        let gather = Exchange {
            src: scatter.dst.cast_const(),
            to: Span::same(mine.1),
            dst: work.dst.wrapping_add(base * size),
            from: each,
            keep: Keep::Each,
            takes_own: false,
            ..scatter
        };
        // In a loop, so that both run the same instructions: on a GPU the second hop finds them in the instruction
        // cache.
        for hop in [scatter, gather] {
            // SAFETY: obligation 1. In place, a thread writes words of our block that only it reads.
            unsafe { exchange::<B, PEERS>(block, &hop)? };
        }
        Ok(())
    }
}
