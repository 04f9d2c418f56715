//! Everything in one hop between all ranks: for messages whose time is latency.

use super::mesh::{Meet, MeshEnds, Round};
use super::work::CollWork;
use crate::gpu::{Block, Stop};
use oxccl_shared::abi::Func;
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::oneshot as schedule;

/// Runs `work.func` in one hop, as `M` meets peers.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub unsafe fn run<B: Block, M: Meet<B>>(block: &B, ends: &MeshEnds<'_>, work: &CollWork) -> Result<(), Stop> {
    let hops = || schedule::hops(work.func, work.rank, work.root);
    if work.func == Func::Barrier && work.part.is_empty() {
        // SAFETY: no memory is accessed.
        return unsafe { M::run(block, ends, work, hops(), &Round::of_ranks(work, 0..0)) };
    }
    for range in chunk::slices(work.part.clone(), work.slice_elems) {
        // SAFETY: obligation 1: the range lies within the part.
        unsafe { M::run(block, ends, work, hops(), &Round::of_ranks(work, range))? };
    }
    Ok(())
}
