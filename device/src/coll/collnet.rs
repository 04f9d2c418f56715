//! All-reduce, reduce-scatter and all-gather up a chain of a host's ranks, through in-network reduction, and down again.

use super::hop::{HopArgs, run_hop};
use super::work::{ChainEnds, CollWork};
use crate::conn::Conns;
use crate::gpu::{Block, Stop};
use crate::prims::{Proto, Slice, run_slice};
use core::ops::Range;
use oxccl_shared::abi::{Func, SlotHeader};
use oxccl_shared::algo::collnet::{self as schedule, BlockHop, BlockStep, Blocks, Owner};
use oxccl_shared::algo::tree::{Turn, lag_max, pipeline};

/// Runs `work` along the chain. The slots of its protocol contain nothing but elements, so that the network can add
/// them.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub(crate) unsafe fn all_reduce<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    chain: &ChainEnds,
    work: &CollWork,
) -> Result<(), Stop> {
    let below = chain.links.has_below as usize;
    let up = HopArgs {
        action: schedule::all_reduce_up(&chain.links),
        recv: &chain.below_recv[..below],
        send: &chain.above_send,
        src_position: below,
        src_offset: 0,
        dst_offset: 0,
    };
    let down = HopArgs {
        action: schedule::all_reduce_down(&chain.links),
        recv: &chain.above_recv,
        send: &chain.below_send[..below],
        ..up
    };
    let chunk = |index: usize| -> Range<usize> {
        let start = work.part.start + index * work.chunk_elems;
        start..(start + work.chunk_elems).min(work.part.end)
    };
    // As in a tree, but not one function with it: shared code costs the tree's GPU kernels 30 registers.
    let nchunks = work.part.len().div_ceil(work.chunk_elems);
    let lag = lag_max(work.chunk_elems.div_ceil(work.slice_elems), P::PROTOCOL.slots());
    for turn in pipeline(nchunks, lag) {
        let (hop, index) = match turn {
            Turn::Up(index) => (&up, index),
            Turn::Down(index) => (&down, index),
        };
        // SAFETY: obligation 1 is passed on: a chunk lies within the part.
        unsafe { run_hop::<B, P>(block, conns, work, hop, chunk(index))? };
    }
    Ok(())
}

/// Runs `work`, a reduce-scatter or an all-gather, along the chain. `owners` says of each rank where it is.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub(crate) unsafe fn blocks<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    (chain, owners): (&ChainEnds, &[Owner]),
    work: &CollWork,
) -> Result<(), Stop> {
    let scatters = work.func == Func::ReduceScatter;
    let steps = Blocks::new(work.part.clone(), work.slice_elems, work.nranks);
    let (mut ups, mut downs) = (steps.clone(), steps);
    let nsteps = Blocks::count(work.part.len(), work.slice_elems, work.nranks);
    for turn in pipeline(nsteps, lag_max(1, P::PROTOCOL.slots())) {
        let is_up = matches!(turn, Turn::Up(_));
        let Some(step) = (if is_up { ups.next() } else { downs.next() }) else { break };
        let owner = owners[step.owner.index()];
        let hop = match (is_up, scatters) {
            (true, true) => schedule::reduce_scatter_up(&chain.links),
            (true, false) => schedule::all_gather_up(&chain.links, owner),
            (false, true) => schedule::reduce_scatter_down(&chain.links, owner),
            (false, false) => schedule::all_gather_down(&chain.links),
        };
        let Some(hop) = hop else { continue };
        let slice = slice_of(chain, work, &hop, is_up, &step);
        // SAFETY: obligation 1 is passed on: a step lies within a block.
        unsafe { run_slice::<B, P>(block, conns, &slice)? };
    }
    Ok(())
}

/// A step as one slice.
#[inline(always)]
fn slice_of<'a>(
    chain: &'a ChainEnds,
    work: &CollWork,
    hop: &BlockHop,
    is_up: bool,
    step: &BlockStep,
) -> Slice<'a> {
    let (size, at) = (work.elem_bytes(), step.elems.start);
    let in_all = (step.owner.index() * work.count + at) * size;
    let (src, dst) = if work.func == Func::ReduceScatter { (in_all, at * size) } else { (at * size, in_all) };
    let len_bytes = if hop.is_full { (step.elems.len() * size) as u32 } else { 0 };
    let (recv, send) =
        if is_up { (&chain.below_recv, &chain.above_send) } else { (&chain.above_recv, &chain.below_send) };
    Slice {
        action: hop.action,
        header: SlotHeader { tag: work.tag, len_bytes },
        recv,
        send,
        // What comes from below is before our own.
        src_position: 1,
        src: work.src.wrapping_add(src),
        dst: work.dst.wrapping_add(dst),
        stream: work.stream,
    }
}
