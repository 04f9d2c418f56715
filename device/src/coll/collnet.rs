//! All-reduce, reduce-scatter and all-gather up to the head of a host, along a chain or at once, through in-network reduction, and down again.

use super::hop::{HopArgs, run_hop};
use super::work::{CollWork, HostEnds};
use crate::conn::Conns;
use crate::gpu::{Block, Stop};
use crate::prims::{Proto, Slice, run_slice};
use core::ops::Range;
use oxccl_shared::abi::{Func, SlotHeader};
use oxccl_shared::algo::collnet::{self as schedule, BlockHop, BlockStep, Blocks, Owner};
use oxccl_shared::algo::tree::{Turn, lag_max, pipeline};

/// Runs `work`, of a function that the registry offers, along these connections.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub(crate) unsafe fn run<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    ends: &HostEnds<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    match work.func {
        // SAFETY: obligation 1 is passed on.
        Func::AllReduce => unsafe { all_reduce::<B, P>(block, conns, ends, work) },
        // SAFETY: obligation 1 is passed on.
        _ => unsafe { blocks::<B, P>(block, conns, ends, work) },
    }
}

/// Runs an all-reduce. The slots of its protocol contain nothing but elements, so that the network can add
/// them.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
unsafe fn all_reduce<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    ends: &HostEnds<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    let up = HopArgs {
        action: schedule::all_reduce_up(&ends.links),
        recv: ends.below_recv,
        send: &ends.above_send,
        src_position: ends.below_recv.len(),
        src_offset: 0,
        dst_offset: 0,
    };
    let down = HopArgs {
        action: schedule::all_reduce_down(&ends.links),
        recv: &ends.above_recv,
        send: ends.below_send,
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

/// Runs a reduce-scatter or an all-gather.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
unsafe fn blocks<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    ends: &HostEnds<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    let scatters = work.func == Func::ReduceScatter;
    let steps = Blocks::new(work.part.clone(), work.slice_elems, work.nranks);
    let (mut ups, mut downs) = (steps.clone(), steps);
    let nsteps = Blocks::count(work.part.len(), work.slice_elems, work.nranks);
    for turn in pipeline(nsteps, lag_max(1, P::PROTOCOL.slots())) {
        let is_up = matches!(turn, Turn::Up(_));
        let Some(step) = (if is_up { ups.next() } else { downs.next() }) else { break };
        let owner = ends.owners[step.owner.index()];
        let hop = match (is_up, scatters) {
            (true, true) => schedule::reduce_scatter_up(&ends.links),
            (true, false) => schedule::all_gather_up(&ends.links, owner),
            (false, true) => schedule::reduce_scatter_down(&ends.links, owner),
            (false, false) => schedule::all_gather_down(&ends.links),
        };
        let Some(hop) = hop else { continue };
        let slice = slice_of(ends, work, (&hop, is_up, owner), &step);
        // SAFETY: obligation 1 is passed on: a step lies within a block.
        unsafe { run_slice::<B, P>(block, conns, &slice)? };
    }
    Ok(())
}

/// A step as one slice.
#[inline(always)]
fn slice_of<'a>(
    ends: &'a HostEnds<'_>,
    work: &CollWork,
    (hop, is_up, owner): (&BlockHop, bool, Owner),
    step: &BlockStep,
) -> Slice<'a> {
    let (size, at) = (work.elem_bytes(), step.elems.start);
    let in_all = (step.owner.index() * work.count + at) * size;
    let (src, dst) = if work.func == Func::ReduceScatter { (in_all, at * size) } else { (at * size, in_all) };
    let len_bytes = if hop.is_full { (step.elems.len() * size) as u32 } else { 0 };
    let below = schedule::branches(work.func, is_up, owner, ends.below_recv.len());
    let (recv, send) = match is_up {
        true => (&ends.below_recv[below], &ends.above_send[..]),
        false => (&ends.above_recv[..], &ends.below_send[below]),
    };
    Slice {
        action: hop.action,
        header: SlotHeader { tag: work.tag, len_bytes },
        recv,
        send,
        // What comes from below is before our own.
        src_position: recv.len(),
        src: work.src.wrapping_add(src),
        dst: work.dst.wrapping_add(dst),
        stream: work.stream,
    }
}
