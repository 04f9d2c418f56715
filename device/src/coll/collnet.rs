//! All-reduce up a chain of a host's ranks, through in-network reduction, and down again.

use super::hop::{HopArgs, run_hop};
use super::work::{ChainEnds, CollWork};
use crate::conn::Conns;
use crate::gpu::{Block, Stop};
use crate::prims::Proto;
use core::ops::Range;
use oxccl_shared::algo::collnet as schedule;
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
