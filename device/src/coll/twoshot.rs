//! All-reduce in two hops between all ranks: each reduces a block and sends it to the others.

use super::mesh::{Meet, Round};
use super::work::{CollWork, MeshEnds};
use crate::gpu::{Block, Stop};
use oxccl_shared::algo::chunk::Loops;
use oxccl_shared::algo::twoshot as schedule;

/// Runs `work`, an all-reduce, in two hops for each loop, as `M` meets peers. Over LL128 a slice fits
/// [half a slot](oxccl_shared::proto::ll128::half_payload_bytes).
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub unsafe fn run<B: Block, M: Meet<B>>(block: &B, ends: &MeshEnds<'_>, work: &CollWork) -> Result<(), Stop> {
    for round in Loops::new(work.part.clone(), work.nranks, work.slice_elems, work.grain_elems) {
        // SAFETY: obligation 1: the round lies within the part.
        unsafe { M::run(block, ends, work, schedule::all_reduce(), &Round::of_loop(work, &round))? };
    }
    Ok(())
}
