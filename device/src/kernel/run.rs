//! From a launch's arguments to an algorithm.

use super::shared_conns::{Extent, SharedConns, save};
use crate::coll::{
    ChainEnds, CollWork, Endpoints, RingEnds, TreeEnds, direct, line_hops, one_hop, ring, send_recv, tree,
};
use crate::conn::Conns;
use crate::gpu::Block;
use crate::gpu::ptx::{PtxBlock, block_index, sync_all};
use crate::prims::Proto;
use core::slice;
use oxccl_shared::abi::{
    Algorithm, CollArgs, DataType, Func, KERNEL_MESSAGE_GRAIN_BYTES, KernelLaunch, KernelMessage, Protocol,
    Rank,
};
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::tree::{ARITY_MAX, TreeLinks};
use oxccl_shared::reduce::Element;

/// The most peers that a one-shot or two-shot kernel has: a host of 8 GPUs.
pub const MESH_MAX: usize = 7;
/// Children and parent.
const TREE_MAX: usize = ARITY_MAX + 1;
/// Connection `i` is the `i`-th.
static IDENTITY: [u16; MESH_MAX] = [0, 1, 2, 3, 4, 5, 6];

/// What this block does of the whole.
#[inline(always)]
fn work<P: Proto>(args: &CollArgs, func: Func, algorithm: Algorithm, dtype: DataType) -> CollWork {
    let (launch, coll) = (&args.launch, &args.coll);
    CollWork {
        func,
        algorithm,
        protocol: P::PROTOCOL,
        dtype,
        src: coll.src,
        dst: coll.dst,
        count: coll.cut.count as usize,
        part: coll.cut.part(block_index()),
        chunk_elems: coll.chunk_elems as usize,
        slice_elems: coll.slice_elems as usize,
        grain_elems: coll.cut.grain_elems as usize,
        rank: launch.rank,
        nranks: launch.nranks,
        root: coll.root,
        tag: coll.tag,
        stream: false,
    }
}

/// This block's connections.
#[inline(always)]
fn extent(launch: &KernelLaunch) -> Extent {
    let count = launch.nconns as usize;
    Extent { first: block_index() as usize * count, count }
}

/// The same where all ranks are connected. That a kernel is for so many is known when it is compiled.
#[inline(always)]
fn mesh_extent<const PEERS: usize>(launch: &KernelLaunch) -> Extent {
    let count = if PEERS < MESH_MAX { PEERS } else { launch.nconns as usize };
    Extent { first: block_index() as usize * count, count }
}

/// A ring.
///
/// # Safety
/// 1. `args` is what the host launched with, for this function; its buffers hold elements of `T`.
/// 2. `place` is as [`SharedConns::load`] wants it.
#[inline(always)]
pub unsafe fn along_ring<T: Element, P: Proto, const POSTER: bool>(
    args: &CollArgs,
    place: *mut u8,
    func: Func,
) {
    // SAFETY: obligation 1.
    let block = unsafe { block_for::<T, POSTER>(args, func) };
    let nranks = args.launch.nranks as usize;
    // SAFETY: obligation 1: our position, then the rank at each.
    let ring = unsafe {
        slice::from_raw_parts(args.launch.rings.add(block_index() as usize * (nranks + 1)), nranks + 1)
    };
    // SAFETY: obligations 1 and 2.
    let conns = unsafe { SharedConns::<1>::load(place, &args.launch, extent(&args.launch)) };
    let ends = RingEnds { order: &ring[1..], position: ring[0], recv: [0], send: [0] };
    let work = work::<P>(args, func, Algorithm::Ring, T::DTYPE);
    // SAFETY: obligation 1.
    let ran = unsafe { ring::run::<_, P>(&block, conns, &ends, &work) };
    // SAFETY: obligation 1.
    unsafe { finish(&block, conns, &args.launch, ran.is_ok()) };
}

/// A tree: all-reduce.
///
/// # Safety
/// 1. As [`along_ring`]; a channel's connections are those to and from its children in the tree, in order, then its parent's,
///    the same for both directions.
#[inline(always)]
pub unsafe fn along_tree<T: Element, P: Proto, const POSTER: bool>(
    args: &CollArgs,
    place: *mut u8,
    func: Func,
) {
    // SAFETY: obligation 1.
    let block = unsafe { PtxBlock::<T, POSTER>::reducing(&args.launch, &args.coll) };
    // SAFETY: obligation 1.
    let links = unsafe { &*args.launch.trees.add(block_index() as usize) };
    let (children, has_parent) = (links.children as usize, links.has_parent != 0);
    let extent = Extent { count: children + has_parent as usize, ..extent(&args.launch) };
    // SAFETY: obligations 1 and 2.
    let conns = unsafe { SharedConns::<TREE_MAX>::load(place, &args.launch, extent) };
    let ends = TreeEnds {
        links: tree_links(children, has_parent),
        children,
        child_recv: [0, 1, 2],
        child_send: [0, 1, 2],
        parent_recv: [children as u16],
        parent_send: [children as u16],
    };
    let work = work::<P>(args, func, Algorithm::Tree, T::DTYPE);
    // SAFETY: obligation 1.
    let ran = unsafe { tree::all_reduce::<_, P>(&block, conns, &ends, &work) };
    if ran.is_ok() && block.leads() {
        // SAFETY: obligation 1.
        unsafe { save(conns, &args.launch, extent) };
    }
}

/// Who is above and below matters to the schedule, not by which number.
#[inline(always)]
fn tree_links(children: usize, has_parent: bool) -> TreeLinks {
    let child = |i: usize| (i < children).then_some(Rank(0));
    TreeLinks { up: has_parent.then_some(Rank(0)), down: [child(0), child(1), child(2)] }
}

/// One hop to everybody, whole slots: all-reduce.
///
/// # Safety
/// 1. As [`along_ring`].
#[inline(always)]
pub unsafe fn over_mesh<T: Element, P: Proto, const POSTER: bool>(
    args: &CollArgs,
    place: *mut u8,
    func: Func,
) {
    // SAFETY: obligation 1.
    let block = unsafe { block_for::<T, POSTER>(args, func) };
    // SAFETY: obligations 1 and 2: the mesh has a connection each way to every other rank, at most MESH_MAX.
    let conns = unsafe { SharedConns::<MESH_MAX>::load(place, &args.launch, extent(&args.launch)) };
    let (ring, tree, others) = (RingEnds::default(), TreeEnds::default(), others(&args.launch));
    let chain = ChainEnds::default();
    let ends = Endpoints { ring, tree: &tree, chain: &chain, mesh_recv: others, mesh_send: others };
    let work = work::<P>(args, func, Algorithm::OneShot, T::DTYPE);
    // SAFETY: obligation 1.
    let ran = unsafe { direct::all_reduce::<_, P>(&block, conns, &ends, &work) };
    // SAFETY: obligation 1.
    unsafe { finish(&block, conns, &args.launch, ran.is_ok()) };
}

/// One-shot, words or lines of all peers at once: of so many, or of all that there are if it is [`MESH_MAX`].
///
/// # Safety
/// 1. As [`along_ring`].
#[inline(always)]
pub unsafe fn one_shot<T: Element, P: Proto, const POSTER: bool, const PEERS: usize>(
    args: &CollArgs,
    place: *mut u8,
    func: Func,
) {
    // SAFETY: obligation 1.
    unsafe { exchanging::<T, P, POSTER, PEERS>(args, place, func, Algorithm::OneShot) }
}

/// Two-shot: all-reduce, as [`one_shot`].
///
/// # Safety
/// 1. As [`along_ring`].
#[inline(always)]
pub unsafe fn two_shot<T: Element, P: Proto, const POSTER: bool, const PEERS: usize>(
    args: &CollArgs,
    place: *mut u8,
    func: Func,
) {
    // SAFETY: obligation 1.
    unsafe { exchanging::<T, P, POSTER, PEERS>(args, place, func, Algorithm::TwoShot) }
}

/// # Safety
/// 1. As [`along_ring`].
#[inline(always)]
unsafe fn exchanging<T: Element, P: Proto, const POSTER: bool, const PEERS: usize>(
    args: &CollArgs,
    place: *mut u8,
    func: Func,
    algorithm: Algorithm,
) {
    // SAFETY: obligation 1.
    let block = unsafe { block_for::<T, POSTER>(args, func) };
    // SAFETY: obligations 1 and 2: as in `over_mesh`.
    let conns =
        unsafe { SharedConns::<PEERS>::load(place, &args.launch, mesh_extent::<PEERS>(&args.launch)) };
    let work = work::<P>(args, func, algorithm, T::DTYPE);
    let ran = match P::PROTOCOL {
        // SAFETY: obligation 1.
        Protocol::LL => unsafe { one_hop::run::<_, PEERS>(&block, conns, &work) },
        // SAFETY: obligation 1.
        _ => unsafe { line_hops::run::<_, PEERS>(&block, conns, &work) },
    };
    // SAFETY: obligation 1.
    unsafe { finish(&block, conns, &args.launch, ran.is_ok()) };
}

/// The block of a function, which may only move data.
///
/// # Safety
/// 1. As [`along_ring`].
#[inline(always)]
unsafe fn block_for<'a, T: Element, const POSTER: bool>(
    args: &CollArgs,
    func: Func,
) -> PtxBlock<'a, T, POSTER> {
    match func {
        // SAFETY: obligation 1.
        Func::AllGather | Func::AllToAll | Func::Broadcast | Func::Barrier => unsafe {
            PtxBlock::moving(&args.launch)
        },
        // SAFETY: obligation 1.
        _ => unsafe { PtxBlock::reducing(&args.launch, &args.coll) },
    }
}

/// All connections of a mesh.
#[inline(always)]
fn others(launch: &KernelLaunch) -> &'static [u16] {
    &IDENTITY[..(launch.nranks as usize - 1).min(MESH_MAX)]
}

/// # Safety
/// 1. `conns` was loaded for this block.
#[inline(always)]
unsafe fn finish<B: Block>(block: &B, conns: Conns<'_>, launch: &KernelLaunch, ran: bool) {
    // A communicator whose kernel stopped is not used again.
    if ran && block.leads() {
        // SAFETY: obligation 1.
        unsafe { save(conns, launch, extent(launch)) };
    }
}

/// Sends and receives: block `b` runs lane `b / nchannels` on channel `b % nchannels`.
///
/// # Safety
/// 1. `launch` is what the host launched with, and `messages` the list after it.
/// 2. As [`along_ring`].
#[inline(always)]
pub unsafe fn run_messages<P: Proto, const POSTER: bool>(
    launch: &KernelLaunch,
    messages: *const KernelMessage,
    place: *mut u8,
) {
    let (lane, channel) = (block_index() / launch.nchannels, block_index() % launch.nchannels);
    // SAFETY: obligation 1.
    let block = unsafe { PtxBlock::<u8, POSTER>::moving(launch) };
    for i in 0..launch.nmessages as usize {
        // SAFETY: obligation 1.
        let message = unsafe { &*messages.add(i) };
        if message.lane != lane {
            continue;
        }
        let (len_bytes, grain_bytes) = (message.len_bytes as usize, KERNEL_MESSAGE_GRAIN_BYTES);
        let part = chunk::channel_part(len_bytes, launch.nchannels, channel, grain_bytes);
        if part.is_empty() && (message.len_bytes > 0 || channel > 0) {
            continue;
        }
        let extent = Extent { first: (channel * launch.nconns + message.conn) as usize, count: 1 };
        // SAFETY: obligations 1 and 2: no other block has this lane, and with it this direction of the connection.
        let conns = unsafe { SharedConns::<1>::load(place, launch, extent) };
        // SAFETY: obligation 1.
        let ran = unsafe { send_recv::run_part::<_, P>(&block, conns, message, part) };
        if ran.is_err() {
            return;
        }
        if block.leads() {
            let Conns { send, recv } = conns;
            let conns =
                if message.is_send != 0 { Conns { send, recv: &[] } } else { Conns { send: &[], recv } };
            // SAFETY: obligation 1: the other direction may be another block's.
            unsafe { save(conns, launch, extent) };
        }
        // The next message may use the same connection.
        sync_all();
    }
}
