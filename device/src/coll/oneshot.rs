//! Everything in one hop between all ranks: for messages whose time is latency.

use super::mesh::{Meet, Round, short_of};
use super::work::{CollWork, MeshEnds};
use crate::gpu::{Block, Stop};
use crate::prims::Short;
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

/// `work` as one exchange, if it is one: a single slice, by which all ranks send to all and receive from all.
#[inline(always)]
pub fn in_one_exchange(work: &CollWork) -> Option<Short> {
    let len = work.part.len();
    let [hop] = schedule::hops(work.func, work.rank, work.root);
    let is_one = if work.func == Func::Barrier { len == 0 } else { 0 < len && len <= work.slice_elems };
    is_one.then(|| short_of(work, &hop, &Round::of_ranks(work, work.part.clone()))).flatten()
}
