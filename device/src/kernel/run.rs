//! From a launch's arguments to an algorithm.

use super::local::LocalConns;
use crate::coll::{CollWork, Endpoints, RingEnds, TreeEnds, direct, ring, send_recv};
use crate::gpu::Block;
use crate::gpu::ptx::{PtxBlock, block_index};
use crate::prims::Proto;
use core::slice;
use oxccl_shared::abi::{Algorithm, CollArgs, Func, KernelChannel, KernelLaunch, KernelMessage};
use oxccl_shared::algo::chunk;
use oxccl_shared::reduce::Element;

/// The most peers that a direct algorithm has: a host of 8 GPUs.
pub const MESH_MAX: usize = 7;
/// Parts of a message are multiples of this.
const MESSAGE_GRAIN_BYTES: usize = 4096;
/// Connection `i` is the `i`-th.
static IDENTITY: [u16; MESH_MAX] = [0, 1, 2, 3, 4, 5, 6];

/// # Safety
/// 1. `launch` is what the host launched with.
#[inline(always)]
unsafe fn channel<'a>(launch: &KernelLaunch, index: u32) -> &'a KernelChannel {
    // SAFETY: obligation 1: there is a channel for every block.
    unsafe { &*launch.channels.add(index as usize) }
}

/// What this block does of the whole.
#[inline(always)]
fn work<P: Proto>(
    args: &CollArgs,
    func: Func,
    algorithm: Algorithm,
    dtype: oxccl_shared::abi::DataType,
) -> CollWork {
    let (launch, coll) = (&args.launch, &args.coll);
    let grain_elems = coll.grain_elems as usize;
    CollWork {
        func,
        algorithm,
        protocol: P::PROTOCOL,
        dtype,
        src: coll.src,
        dst: coll.dst,
        count: coll.count as usize,
        part: chunk::channel_part(coll.count as usize, launch.nchannels, block_index(), grain_elems),
        chunk_elems: coll.chunk_elems as usize,
        slice_elems: coll.slice_elems as usize,
        grain_elems,
        rank: launch.rank,
        nranks: launch.nranks,
        root: coll.root,
        tag: coll.tag,
        stream: false,
    }
}

/// A ring.
///
/// # Safety
/// 1. `args` is what the host launched with, for this function; its buffers hold elements of `T`.
#[inline(always)]
pub unsafe fn along_ring<T: Element, P: Proto, const POSTER: bool>(args: &CollArgs, func: Func) {
    // SAFETY: obligation 1.
    let channel = unsafe { channel(&args.launch, block_index()) };
    // SAFETY: obligation 1.
    let block = unsafe { PtxBlock::<T, POSTER>::reducing(&args.launch, &args.coll) };
    // SAFETY: obligation 1: a ring's channel has a connection each way.
    let mut conns = unsafe { LocalConns::<1>::load(channel) };
    // SAFETY: obligation 1: the order names every rank.
    let order = unsafe { slice::from_raw_parts(channel.order, args.launch.nranks as usize) };
    let ends = RingEnds { order, position: channel.position, recv: [0], send: [0] };
    let work = work::<P>(args, func, Algorithm::Ring, T::DTYPE);
    // SAFETY: obligation 1.
    let ran = unsafe { ring::run::<_, P>(&block, &mut conns.view(), &ends, &work) };
    // SAFETY: obligation 1.
    unsafe { finish(&block, &conns, channel, ran.is_ok()) };
}

/// One hop to everybody: all-reduce.
///
/// # Safety
/// 1. As [`along_ring`].
#[inline(always)]
pub unsafe fn over_mesh<T: Element, P: Proto, const POSTER: bool>(args: &CollArgs, func: Func) {
    // SAFETY: obligation 1.
    let channel = unsafe { channel(&args.launch, block_index()) };
    // SAFETY: obligation 1.
    let block = unsafe { PtxBlock::<T, POSTER>::reducing(&args.launch, &args.coll) };
    // SAFETY: obligation 1: the mesh has a connection each way to every other rank, at most MESH_MAX.
    let mut conns = unsafe { LocalConns::<MESH_MAX>::load(channel) };
    let others = &IDENTITY[..(args.launch.nranks as usize - 1).min(MESH_MAX)];
    let (ring, tree) = (RingEnds::default(), TreeEnds::default());
    let ends = Endpoints { ring, tree: &tree, mesh_recv: others, mesh_send: others };
    let work = work::<P>(args, func, Algorithm::Direct, T::DTYPE);
    // SAFETY: obligation 1.
    let ran = unsafe { direct::all_reduce::<_, P>(&block, &mut conns.view(), &ends, &work) };
    // SAFETY: obligation 1.
    unsafe { finish(&block, &conns, channel, ran.is_ok()) };
}

/// # Safety
/// 1. `channel` is the one that `conns` was loaded from.
#[inline(always)]
unsafe fn finish<B: crate::gpu::Block, const N: usize>(
    block: &B,
    conns: &LocalConns<N>,
    channel: &KernelChannel,
    ran: bool,
) {
    // A communicator whose kernel stopped is not used again.
    if ran && block.thread() == 0 {
        // SAFETY: obligation 1. Every thread has passed a barrier since it loaded its copy.
        unsafe { conns.save(channel) };
    }
}

/// Sends and receives: block `b` runs lane `b / nchannels` on channel `b % nchannels`.
///
/// # Safety
/// 1. `launch` is what the host launched with, and `messages` the list after it.
#[inline(always)]
pub unsafe fn run_messages<P: Proto, const POSTER: bool>(
    launch: &KernelLaunch,
    messages: *const KernelMessage,
) {
    let (lane, index) = (block_index() / launch.nchannels, block_index() % launch.nchannels);
    // SAFETY: obligation 1.
    let channel = unsafe { channel(launch, index) };
    // SAFETY: obligation 1.
    let block = unsafe { PtxBlock::<u8, POSTER>::moving(launch) };
    for i in 0..launch.nmessages as usize {
        // SAFETY: obligation 1.
        let message = unsafe { &*messages.add(i) };
        if message.lane != lane {
            continue;
        }
        let part =
            chunk::channel_part(message.len_bytes as usize, launch.nchannels, index, MESSAGE_GRAIN_BYTES);
        if part.is_empty() && (message.len_bytes > 0 || index > 0) {
            continue;
        }
        let conn = message.conn as usize;
        // SAFETY: obligation 1: the connection is one of the channel's, and no other block has this lane.
        let mut conns = unsafe { LocalConns::<1>::load(&only(channel, conn)) };
        // SAFETY: obligation 1.
        let ran = unsafe { send_recv::run_part::<_, P>(&block, &mut conns.view(), message, part) };
        if ran.is_err() {
            return;
        }
        // SAFETY: obligation 1.
        unsafe { conns.save_one(&only(channel, conn), message.is_send != 0, block.thread() == 0) };
    }
}

/// Both connections of that index, as a channel of their own.
#[inline(always)]
fn only(channel: &KernelChannel, conn: usize) -> KernelChannel {
    KernelChannel {
        send: channel.send.wrapping_add(conn),
        recv: channel.recv.wrapping_add(conn),
        send_cursors: channel.send_cursors.wrapping_add(conn),
        recv_cursors: channel.recv_cursors.wrapping_add(conn),
        ..*channel
    }
}
