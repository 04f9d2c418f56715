//! Every collective along a ring: each rank receives from the one before it and sends to the one after it.

use super::hop::{HopArgs, run_hop};
use super::work::{CollWork, RingEnds};
use crate::conn::Conns;
use crate::gpu::{Block, Stop};
use crate::prims::Proto;
use oxccl_shared::abi::Func;
use oxccl_shared::algo::chunk::{self, Loops};
use oxccl_shared::algo::{Hop, ring as schedule};

/// Runs `work.func` along the ring.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub(crate) unsafe fn run<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    ring: &RingEnds<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    let walk = Walk { ring, work };
    let (position, n) = (ring.position, work.nranks);
    match work.func {
        // SAFETY: obligation 1 is passed on in every arm.
        Func::AllGather => unsafe {
            walk.rank_blocks::<B, P>(block, conns, schedule::all_gather(position, n))
        },
        // SAFETY: as above.
        Func::ReduceScatter => unsafe {
            walk.rank_blocks::<B, P>(block, conns, schedule::reduce_scatter(position, n))
        },
        Func::Broadcast | Func::Reduce => {
            let root = ring.order.iter().position(|r| *r == work.root).unwrap_or(0) as u32;
            if work.func == Func::Broadcast {
                // SAFETY: as above.
                unsafe { walk.whole::<B, P>(block, conns, schedule::broadcast(position, root, n)) }
            } else {
                // SAFETY: as above.
                unsafe { walk.whole::<B, P>(block, conns, schedule::reduce(position, root, n)) }
            }
        }
        // SAFETY: as above.
        Func::AllReduce => unsafe { walk.all_reduce::<B, P>(block, conns) },
        Func::AllToAll | Func::Gather | Func::Scatter | Func::Send | Func::Recv | Func::Barrier => {
            unreachable!("the registry offers no such ring")
        }
    }
}

struct Walk<'a> {
    ring: &'a RingEnds<'a>,
    work: &'a CollWork,
}

impl Walk<'_> {
    /// The buffer is cut into loops of n blocks; each block is reduced along the ring, then passed round it.
    ///
    /// # Safety
    /// 1. As [`super::run`].
    #[cfg_attr(not(feature = "cpu"), inline(always))]
    unsafe fn all_reduce<B: Block, P: Proto<B>>(&self, block: &B, conns: Conns<'_>) -> Result<(), Stop> {
        let (work, n) = (self.work, self.work.nranks);
        for round in Loops::new(work.part.clone(), n, work.chunk_elems, work.grain_elems) {
            for hop in schedule::all_reduce(self.ring.position, n) {
                let args = self.args(hop, 0, 0);
                // SAFETY: obligation 1: a block lies within the part.
                unsafe { run_hop::<B, P>(block, conns, work, &args, round.block_range(hop.block))? };
            }
        }
        Ok(())
    }

    /// Block r is rank r's: all blocks are in `dst` (all-gather) or `src` (reduce-scatter), only rank r's in the
    /// other buffer.
    ///
    /// # Safety
    /// 1. As [`super::run`].
    #[cfg_attr(not(feature = "cpu"), inline(always))]
    unsafe fn rank_blocks<B: Block, P: Proto<B>>(
        &self,
        block: &B,
        conns: Conns<'_>,
        hops: impl Iterator<Item = Hop> + Clone,
    ) -> Result<(), Stop> {
        let work = self.work;
        for range in chunk::slices(work.part.clone(), work.chunk_elems) {
            for hop in hops.clone() {
                let offset = self.ring.order[hop.block as usize].index() * work.count;
                let (src, dst) = if work.func == Func::AllGather { (0, offset) } else { (offset, 0) };
                let args = self.args(hop, src, dst);
                // SAFETY: obligation 1: each rank's block is `count` long and `range` lies within `0..count`.
                unsafe { run_hop::<B, P>(block, conns, work, &args, range.clone())? };
            }
        }
        Ok(())
    }

    /// The buffer flows through the ring chunk by chunk, from the root or towards it.
    ///
    /// # Safety
    /// 1. As [`super::run`].
    #[cfg_attr(not(feature = "cpu"), inline(always))]
    unsafe fn whole<B: Block, P: Proto<B>>(
        &self,
        block: &B,
        conns: Conns<'_>,
        hops: impl Iterator<Item = Hop> + Clone,
    ) -> Result<(), Stop> {
        let work = self.work;
        for range in chunk::slices(work.part.clone(), work.chunk_elems) {
            for hop in hops.clone() {
                // SAFETY: obligation 1: `range` lies within `0..count`.
                unsafe { run_hop::<B, P>(block, conns, work, &self.args(hop, 0, 0), range.clone())? };
            }
        }
        Ok(())
    }

    fn args(&self, hop: Hop, src_offset: usize, dst_offset: usize) -> HopArgs<'_> {
        let Hop { action, .. } = hop;
        let (recv, send) = (&self.ring.recv, &self.ring.send);
        HopArgs { action, recv, send, src_position: 1, src_offset, dst_offset }
    }
}
