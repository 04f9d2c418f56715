//! From a launch's arguments to the algorithms that go through a network that reduces.

use super::run::{IDENTITY, block_for, extent, work};
use super::shared_conns::{Extent, SharedConns, save};
use crate::coll::{self, HostEnds};
use crate::gpu::threads::GpuBlock;
use crate::gpu::{Block, KernelMachine};
use crate::prims::Proto;
use core::slice;
use oxccl_shared::abi::{Algorithm, CollArgs, Func};
use oxccl_shared::algo::collnet::{HostLinks, Owner, STAR_BELOW_MAX};
use oxccl_shared::reduce::Element;

/// A head's: to all below and to the network. Others have fewer.
const CONNS_MAX: usize = STAR_BELOW_MAX + 1;

/// Along a chain or a star to a network that reduces.
///
/// # Safety
/// 1. As [`super::run::ring`]; a channel's connections are those to and from the ranks below, in order, then those above: the same for both
///    directions. The table of rings has, for each channel, where each rank is, seen from this one's place in its host.
#[inline(always)]
pub unsafe fn collnetchain<M, T, P, const POSTER: bool>(machine: M, args: &CollArgs, func: Func)
where
    M: KernelMachine,
    T: Element,
    P: Proto<GpuBlock<M, T, POSTER>>,
{
    // SAFETY: obligation 1.
    let block = unsafe { block_for::<M, T, POSTER>(machine, args, func) };
    let (index, place) = (block.machine().block_index(), block.machine().shared());
    // SAFETY: obligation 1.
    let place_in_host = unsafe { &*args.launch.trees.add(index as usize) };
    let (below, is_head) = (place_in_host.children as usize, place_in_host.has_parent == 0);
    let extent = Extent { count: below + 1, ..extent(&args.launch, index) };
    // SAFETY: obligations 1 and 2 of `ring`.
    let conns = unsafe { SharedConns::<CONNS_MAX>::load(block.machine(), place, &args.launch, extent) };
    let nranks = args.launch.nranks as usize;
    let owners = args.launch.rings.wrapping_add(index as usize * nranks).cast::<Owner>();
    let all_below = &IDENTITY[..below.min(STAR_BELOW_MAX)];
    let ends = HostEnds {
        links: HostLinks { is_head, has_below: below > 0 },
        below_recv: all_below,
        below_send: all_below,
        above_recv: [below as u16],
        above_send: [below as u16],
        // SAFETY: obligation 1: a word for each rank.
        owners: unsafe { slice::from_raw_parts(owners, nranks) },
    };
    let work = work::<_, P>(args, index, func, Algorithm::CollnetChain, T::DTYPE);
    // SAFETY: obligation 1.
    let ran = unsafe { coll::collnet::run::<_, P>(&block, conns, &ends, &work) };
    if ran.is_ok() && block.leads() {
        // SAFETY: obligation 1.
        unsafe { save(conns, &args.launch, extent) };
    }
}
