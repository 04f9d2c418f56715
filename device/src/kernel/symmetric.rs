//! From a launch's arguments to a collective on buffers that all ranks reach.

use super::run::MESH_MAX;
use super::shared_conns::{Extent, SharedConns, save};
use crate::coll::symmetric::{Buffers, OwnPart, can_reduce_by_threads, copy_own, run, run_by_threads};
use crate::gpu::threads::GpuBlock;
use crate::gpu::{Awaited, Block, KernelMachine, Wait};
use oxccl_shared::abi::{Func, RankBuffers, SlotHeader, SymmetricArgs};
use oxccl_shared::algo::symmetric::Share;
use oxccl_shared::reduce::Element;

/// A symmetric kernel. With tiles its last warp stores, its first one loads, those between combine. Without, all but the last copy,
/// or reduce the inputs of a few ranks.
///
/// # Safety
/// 1. `args` is what the host launched with, for this function; all ranks' buffers hold elements of `T`, and are aligned as
///    [`run`] asks for where the launch has tiles. `ranks` are those of `args`.
/// 2. Nobody else uses the machine's shared memory.
#[inline(always)]
pub unsafe fn symmetric<M: KernelMachine, T: Element>(
    machine: M,
    args: &SymmetricArgs,
    ranks: *const RankBuffers,
    func: Func,
) {
    let (launch, coll) = (&args.launch, &args.coll);
    let mut block = match func.is_reduction() {
        // SAFETY: obligation 1.
        false => unsafe { GpuBlock::<M, T, true>::moving(machine, launch) },
        // SAFETY: obligation 1.
        true => unsafe { GpuBlock::<M, T, true>::reducing(machine, launch, coll) },
    };
    let (index, place) = (block.machine().block_index(), block.machine().shared());
    let share = Share {
        func,
        rank: launch.rank,
        nranks: launch.nranks,
        count: coll.cut.count as usize,
        nchannels: launch.nchannels,
        channel: index,
        grain_elems: coll.cut.grain_elems as usize,
    };
    let buffers = Buffers { ranks, rank: launch.rank, nranks: launch.nranks };
    if index >= launch.nchannels {
        let own = Share { nchannels: args.own_blocks, channel: index - launch.nchannels, ..share };
        // SAFETY: obligation 1.
        return unsafe { copy_own(&block, &buffers, own, size_of::<T>()) };
    }
    let extent = Extent { first: (index * launch.nconns) as usize, count: launch.nconns as usize };
    // SAFETY: obligations 1 and 2: the mesh has a connection each way to every other rank, at most so many.
    let conns = unsafe { SharedConns::<MESH_MAX>::load(block.machine(), place, launch, extent) };
    let operands = if func.is_reduction() { launch.nranks } else { 1 };
    let has_tiles = block.open_tiles(launch.tile_bytes, operands);
    if !has_tiles && func.is_reduction() && !can_reduce_by_threads::<GpuBlock<M, T, true>>(launch.nranks) {
        // Of more ranks the host launches such a kernel only where there is an engine and room for tiles.
        if block.leads() {
            let nothing = SlotHeader { tag: coll.tag, len_bytes: 0 };
            block.refuse(Wait { peer: launch.rank, what: Awaited::Credit }, nothing, nothing);
        }
        return;
    }
    let own = if args.own_blocks > 0 { OwnPart::Elsewhere } else { OwnPart::Here };
    let ran = match has_tiles {
        // SAFETY: obligation 1.
        true => unsafe { run(&block, conns, &buffers, share, size_of::<T>(), coll.tag) },
        // SAFETY: obligation 1, and the check above.
        false => unsafe { run_by_threads(&block, conns, &buffers, share, size_of::<T>(), coll.tag, own) },
    };
    // A communicator whose kernel stopped is not used again.
    if ran.is_ok() && block.leads() {
        // SAFETY: obligation 1.
        unsafe { save(conns, launch, extent) };
    }
}
