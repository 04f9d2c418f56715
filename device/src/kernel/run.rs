//! From a launch's arguments to an algorithm.

use super::shared_conns::{Extent, SharedConns, save};
use super::short;
use crate::coll::{
    self, AtOnce, CollWork, InTurn, Meet, MeshEnds, RingEnds, TreeEnds, direct, oneshot as one, send_recv,
    twoshot as two,
};
use crate::conn::Conns;
use crate::gpu::threads::GpuBlock;
use crate::gpu::{Block, BulkCopy, CopyEngine, KernelMachine, Lines, Stop, Words};
use crate::prims::{Bulk, Ll, Ll128, Proto, Short, Simple};
use core::ops::Range;
use core::slice;
use oxccl_shared::abi::{
    Algorithm, CollArgs, DataType, Func, KERNEL_DIRECT, KERNEL_MESSAGE_GRAIN_BYTES, KernelLaunch,
    KernelMessage, MESSAGE_ASKS, MESSAGE_TILES, Protocol, Rank, direct_blocks_max, may_ask,
};
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::mesh::{peers, place_from};
use oxccl_shared::algo::tree::{ARITY_MAX, TreeLinks};
use oxccl_shared::reduce::Element;

pub use super::collnet::collnetchain;

/// The most peers that a one-shot or two-shot kernel has: a host of 8 GPUs.
pub const MESH_MAX: usize = 7;
/// Children and parent.
const TREE_MAX: usize = ARITY_MAX + 1;
/// Connection `i` is the `i`-th.
pub(super) static IDENTITY: [u16; MESH_MAX] = [0, 1, 2, 3, 4, 5, 6];

/// What this block does of the whole.
#[inline(always)]
pub(super) fn work<B: Block, P: Proto<B>>(
    args: &CollArgs,
    index: u32,
    func: Func,
    algorithm: Algorithm,
    dtype: DataType,
) -> CollWork {
    let (launch, coll) = (&args.launch, &args.coll);
    CollWork {
        func,
        algorithm,
        protocol: P::PROTOCOL,
        dtype,
        src: coll.src,
        dst: coll.dst,
        count: coll.cut.count as usize,
        part: coll.cut.part(index),
        chunk_elems: coll.chunk_elems as usize,
        slice_elems: coll.slice_elems as usize,
        grain_elems: coll.cut.grain_elems as usize,
        rank: launch.rank,
        nranks: launch.nranks,
        root: coll.root,
        host_ranks: coll.host_ranks,
        tag: coll.tag,
        stream: false,
        is_direct: coll.flags & KERNEL_DIRECT != 0,
    }
}

/// This block's connections.
#[inline(always)]
pub(super) fn extent(launch: &KernelLaunch, index: u32) -> Extent {
    let count = launch.nconns as usize;
    Extent { first: index as usize * count, count }
}

/// The same where all ranks are connected. That a kernel is for so many is known when it is compiled.
#[inline(always)]
fn mesh_extent<const PEERS: usize>(launch: &KernelLaunch, index: u32) -> Extent {
    let count = if PEERS < MESH_MAX { PEERS } else { launch.nconns as usize };
    Extent { first: index as usize * count, count }
}

/// A ring.
///
/// # Safety
/// 1. `args` is what the host launched with, for this function; its buffers hold elements of `T`.
/// 2. Nobody else uses the machine's shared memory.
#[inline(always)]
pub unsafe fn ring<M: KernelMachine, T: Element, P: ByTiles<GpuBlock<M, T, POSTER>>, const POSTER: bool>(
    machine: M,
    args: &CollArgs,
    func: Func,
) {
    // SAFETY: obligation 1.
    let mut block = unsafe { block_for::<M, T, POSTER>(machine, args, func) };
    let (index, place) = (block.machine().block_index(), block.machine().shared());
    let nranks = args.launch.nranks as usize;
    let ring = args.launch.rings.wrapping_add(index as usize * (nranks + 1));
    // SAFETY: obligation 1: our position, then the rank at each.
    let position = unsafe { *ring };
    // SAFETY: as above; a rank is one word.
    let order = unsafe { slice::from_raw_parts(ring.wrapping_add(1).cast::<Rank>(), nranks) };
    // SAFETY: obligations 1 and 2.
    let conns =
        unsafe { SharedConns::<1>::load(block.machine(), place, &args.launch, extent(&args.launch, index)) };
    let ends = RingEnds { order, position, recv: [0], send: [0] };
    let work = work::<_, P>(args, index, func, Algorithm::Ring, T::DTYPE);
    let ran = if P::HAS_TILES && is_aligned(&work) && block.open_tiles(args.launch.tile_bytes, 2) {
        // SAFETY: obligation 1; slices are aligned.
        let ran = unsafe { coll::ring::run::<_, P::Tiles>(&block, conns, &ends, &work) };
        P::Tiles::close(&block, conns, ran)
    } else {
        // SAFETY: obligation 1.
        unsafe { coll::ring::run::<_, P>(&block, conns, &ends, &work) }
    };
    // SAFETY: obligation 1.
    unsafe { finish(&block, conns, &args.launch, index, ran.is_ok()) };
}

/// A tree: all-reduce.
///
/// # Safety
/// 1. As [`ring`]; a channel's connections are those to and from its children in the tree, in order, then its parent's,
///    the same for both directions.
#[inline(always)]
pub unsafe fn tree<M: KernelMachine, T: Element, P: ByTiles<GpuBlock<M, T, POSTER>>, const POSTER: bool>(
    machine: M,
    args: &CollArgs,
    func: Func,
) {
    // SAFETY: obligation 1.
    let mut block = unsafe { GpuBlock::<M, T, POSTER>::reducing(machine, &args.launch, &args.coll) };
    let (index, place) = (block.machine().block_index(), block.machine().shared());
    // SAFETY: obligation 1.
    let links = unsafe { &*args.launch.trees.add(index as usize) };
    let (children, has_parent) = (links.children as usize, links.has_parent != 0);
    let extent = Extent { count: children + has_parent as usize, ..extent(&args.launch, index) };
    // SAFETY: obligations 1 and 2.
    let conns = unsafe { SharedConns::<TREE_MAX>::load(block.machine(), place, &args.launch, extent) };
    let ends = TreeEnds {
        links: tree_links(children, has_parent),
        children,
        child_recv: [0, 1, 2],
        child_send: [0, 1, 2],
        parent_recv: [children as u16],
        parent_send: [children as u16],
    };
    let work = work::<_, P>(args, index, func, Algorithm::Tree, T::DTYPE);
    let operands = ARITY_MAX as u32 + 1;
    let ran = if P::HAS_TILES && is_aligned(&work) && block.open_tiles(args.launch.tile_bytes, operands) {
        // SAFETY: obligation 1; slices are aligned.
        let ran = unsafe { coll::tree::all_reduce::<_, P::Tiles>(&block, conns, &ends, &work) };
        P::Tiles::close(&block, conns, ran)
    } else {
        // SAFETY: obligation 1.
        unsafe { coll::tree::all_reduce::<_, P>(&block, conns, &ends, &work) }
    };
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

/// One-shot: every rank's message to every other, in one hop; with a room for at most `PEERS` of them. That a kernel is for so many is
/// known when it is compiled.
///
/// # Safety
/// 1. As [`ring`].
#[inline(always)]
pub unsafe fn oneshot<M, T, P, const POSTER: bool, const PEERS: usize>(
    machine: M,
    args: &CollArgs,
    func: Func,
) where
    M: KernelMachine,
    T: Element,
    P: MeshProto<GpuBlock<M, T, POSTER>>,
{
    let index = machine.block_index();
    let work = work::<_, P>(args, index, func, Algorithm::OneShot, T::DTYPE);
    if P::PROTOCOL == Protocol::LL
        && work.is_direct
        && machine.block_threads() as usize > PEERS
        && let Some(what) = one::in_one_exchange(&work)
        && what.has_room::<PEERS>(machine.block_threads() as usize)
    {
        // SAFETY: obligation 1.
        let block = unsafe { block_for::<M, T, POSTER>(machine, args, func) };
        let extent = mesh_extent::<PEERS>(&args.launch, index);
        let what = Short { npeers: extent.count, ..what };
        // SAFETY: obligation 1: the mesh has a connection each way to every other rank, and the work's buffers are valid.
        return unsafe { short::run::<M, T, POSTER, PEERS>(&block, &args.launch, extent, &what) };
    }
    // SAFETY: obligation 1.
    let (block, conns) = unsafe { meshed::<M, T, POSTER, PEERS>(machine, args, func) };
    // SAFETY: obligation 1.
    let ran = unsafe { one::run::<_, P::Way<PEERS>>(&block, &mesh_ends(conns, &work), &work) };
    // SAFETY: obligation 1.
    unsafe { finish(&block, conns, &args.launch, index, ran.is_ok()) };
}

/// Two-shot: every rank reduces a part and sends it to all; as [`oneshot`].
///
/// # Safety
/// 1. As [`ring`].
#[inline(always)]
pub unsafe fn twoshot<M, T, P, const POSTER: bool, const PEERS: usize>(
    machine: M,
    args: &CollArgs,
    func: Func,
) where
    M: KernelMachine,
    T: Element,
    P: MeshProto<GpuBlock<M, T, POSTER>>,
{
    // SAFETY: obligation 1.
    let (block, conns) = unsafe { meshed::<M, T, POSTER, PEERS>(machine, args, func) };
    let index = block.machine().block_index();
    let work = work::<_, P>(args, index, func, Algorithm::TwoShot, T::DTYPE);
    // SAFETY: obligation 1.
    let ran = unsafe { two::run::<_, P::Way<PEERS>>(&block, &mesh_ends(conns, &work), &work) };
    // SAFETY: obligation 1.
    unsafe { finish(&block, conns, &args.launch, index, ran.is_ok()) };
}

/// Two levels: inside hosts, between them, and inside again; as [`oneshot`].
///
/// # Safety
/// 1. As [`ring`].
#[inline(always)]
pub unsafe fn twolevel<M, T, P, const POSTER: bool, const PEERS: usize>(
    machine: M,
    args: &CollArgs,
    func: Func,
) where
    M: KernelMachine,
    T: Element,
    P: Proto<GpuBlock<M, T, POSTER>>,
{
    // SAFETY: obligation 1.
    let (block, conns) = unsafe { meshed::<M, T, POSTER, PEERS>(machine, args, func) };
    let index = block.machine().block_index();
    let work = work::<_, P>(args, index, func, Algorithm::TwoLevel, T::DTYPE);
    // By place in the order in which a rank sends.
    let mut send = [0; PEERS];
    for (place, peer) in peers(work.rank, work.nranks).take(PEERS).enumerate() {
        send[place] = place_from(work.rank, peer) as u16;
    }
    let ends = MeshEnds { send: &send, ..mesh_ends(conns, &work) };
    // SAFETY: obligation 1.
    let ran = unsafe { coll::twolevel::all_reduce::<_, P, PEERS>(&block, &ends, &work) };
    // SAFETY: obligation 1.
    unsafe { finish(&block, conns, &args.launch, index, ran.is_ok()) };
}

/// This block, and its connections to and from all other ranks, at most `PEERS`.
///
/// # Safety
/// 1. As [`ring`].
#[inline(always)]
unsafe fn meshed<'a, M: KernelMachine, T: Element, const POSTER: bool, const PEERS: usize>(
    machine: M,
    args: &CollArgs,
    func: Func,
) -> (GpuBlock<M, T, POSTER>, Conns<'a>) {
    // SAFETY: obligation 1.
    let block = unsafe { block_for::<M, T, POSTER>(machine, args, func) };
    let (index, place) = (block.machine().block_index(), block.machine().shared());
    block.machine().await_previous();
    let extent = mesh_extent::<PEERS>(&args.launch, index);
    // SAFETY: obligations 1 and 2: the mesh has a connection each way to every other rank, at most PEERS.
    let conns = unsafe { SharedConns::<PEERS>::load(block.machine(), place, &args.launch, extent) };
    (block, conns)
}

/// Connections in rank order. A kernel that meets one peer after the other does so in this order too: it is an all-reduce, which sends
/// the same to all.
#[inline(always)]
fn mesh_ends<'a>(conns: Conns<'a>, work: &CollWork) -> MeshEnds<'a> {
    let others = &IDENTITY[..(work.nranks as usize - 1).min(MESH_MAX)];
    MeshEnds { conns, send: others, recv: others }
}

/// A protocol whose slots kernels may move by bulk copies, if the machine has an engine for them.
pub trait ByTiles<B: Block>: Proto<B> {
    /// Whether.
    const HAS_TILES: bool;
    /// The protocol by bulk copies: peers cannot tell.
    type Tiles: Proto<B>;
}

impl<B: Words> ByTiles<B> for Ll<1> {
    const HAS_TILES: bool = false;
    type Tiles = Self;
}

impl<B: Lines> ByTiles<B> for Ll128 {
    const HAS_TILES: bool = false;
    type Tiles = Self;
}

impl<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool>
    ByTiles<GpuBlock<M, T, POSTER, SHIFTS>> for Simple
{
    const HAS_TILES: bool = cfg!(feature = "bulk") && M::Engine::PRESENT;
    type Tiles = Bulk;
}

/// Whether all slices begin at multiples of 16 bytes, as bulk copies must. Borders inside a rank's block are multiples of a grain.
#[inline(always)]
fn is_aligned(work: &CollWork) -> bool {
    let has_blocks = matches!(work.func, Func::AllGather | Func::ReduceScatter);
    let stride = if has_blocks { work.count * work.elem_bytes() } else { 0 };
    let grain = work.grain_elems * work.elem_bytes();
    let slice = work.slice_elems * work.elem_bytes();
    (work.src.addr() | work.dst.addr() | stride | grain | slice).is_multiple_of(16)
}

/// A protocol by which kernels meet all other ranks.
pub trait MeshProto<B: Block>: Proto<B> {
    /// How, with at most `PEERS` peers.
    type Way<const PEERS: usize>: Meet<B>;
}

impl<B: Words> MeshProto<B> for Ll<1> {
    type Way<const PEERS: usize> = AtOnce<Ll<1>, PEERS>;
}

impl<B: Lines> MeshProto<B> for Ll128 {
    type Way<const PEERS: usize> = AtOnce<Ll128, PEERS>;
}

impl<B: Block> MeshProto<B> for Simple {
    type Way<const PEERS: usize> = InTurn<Simple>;
}

/// The block of a function, which may only move data.
///
/// # Safety
/// 1. As [`ring`].
#[inline(always)]
pub(super) unsafe fn block_for<M: KernelMachine, T: Element, const POSTER: bool>(
    machine: M,
    args: &CollArgs,
    func: Func,
) -> GpuBlock<M, T, POSTER> {
    match func.is_reduction() {
        // SAFETY: obligation 1.
        false => unsafe { GpuBlock::moving(machine, &args.launch) },
        // SAFETY: obligation 1.
        true => unsafe { GpuBlock::reducing(machine, &args.launch, &args.coll) },
    }
}

/// # Safety
/// 1. `conns` was loaded for this block.
#[inline(always)]
unsafe fn finish<B: Block>(block: &B, conns: Conns<'_>, launch: &KernelLaunch, index: u32, ran: bool) {
    // A communicator whose kernel stopped is not used again.
    if ran && block.leads() {
        // SAFETY: obligation 1.
        unsafe { save(conns, launch, extent(launch, index)) };
    }
}

/// Sends and receives: block `b` runs lane `b / nchannels` on channel `b % nchannels`.
///
/// # Safety
/// 1. `launch` is what the host launched with, and `messages` the list after it.
/// 2. As [`ring`].
#[inline(always)]
pub unsafe fn messages<M: KernelMachine, P: ByTiles<GpuBlock<M, u8, POSTER, true>>, const POSTER: bool>(
    machine: M,
    launch: &KernelLaunch,
    messages: *const KernelMessage,
) {
    // SAFETY: obligation 1.
    let mut block = unsafe { GpuBlock::<M, u8, POSTER, true>::moving(machine, launch) };
    let (index, place) = (block.machine().block_index(), block.machine().shared());
    let has_tiles = P::PROTOCOL.is_counted() && block.open_tiles(launch.tile_bytes, 1);
    let (lane, channel) = (index / launch.nchannels, index % launch.nchannels);
    for i in 0..launch.nmessages as usize {
        // SAFETY: obligation 1.
        let message = unsafe { &*messages.add(i) };
        if message.lane != lane {
            continue;
        }
        let (len_bytes, grain_bytes) = (message.len_bytes as usize, KERNEL_MESSAGE_GRAIN_BYTES);
        let part_of = |nchannels| chunk::channel_part(len_bytes, nchannels, channel, grain_bytes);
        let part = part_of(launch.nchannels);
        if part.is_empty() && (message.len_bytes > 0 || channel > 0) {
            continue;
        }
        let extent = Extent { first: (channel * launch.nconns + message.conn) as usize, count: 1 };
        // SAFETY: obligations 1 and 2: no other block has this lane, and with it this direction of the connection.
        let conns = unsafe { SharedConns::<1>::load(block.machine(), place, launch, extent) };
        let direct_blocks = launch.nchannels.min(direct_blocks_max(message.len_bytes));
        let has_direct_part = may_ask(message.len_bytes) && channel < direct_blocks;
        let direct = if has_direct_part { part_of(direct_blocks) } else { 0..0 };
        // SAFETY: obligation 1; parts begin at multiples of 16 bytes.
        if unsafe { run_message::<_, P>(&block, conns, message, (direct, part), has_tiles) }.is_err() {
            return;
        }
        if block.leads() {
            let Conns { send, recv } = conns;
            let conns = if message.is_send() { Conns { send, recv: &[] } } else { Conns { send: &[], recv } };
            // SAFETY: obligation 1: the other direction may be another block's.
            unsafe { save(conns, launch, extent) };
        }
        // The next message may use the same connection.
        block.machine().sync_all();
    }
}

/// A part of a message straight into the receiver's buffer, or else a part of it by slots.
///
/// # Safety
/// 1. As [`messages`], for this message; the parts begin at multiples of 16 bytes, and tiles are open if the block `has_tiles`.
#[inline(always)]
unsafe fn run_message<B: BulkCopy, P: ByTiles<B>>(
    block: &B,
    conns: Conns<'_>,
    message: &KernelMessage,
    (direct_part, part): (Range<usize>, Range<usize>),
    has_tiles: bool,
) -> Result<(), Stop> {
    let has = |flag| has_tiles && message.flags & flag != 0;
    let is_direct = match message.is_send() {
        _ if !P::PROTOCOL.is_counted() => false,
        // SAFETY: obligation 1; the host lets only those ask whose buffers are aligned.
        true => has(MESSAGE_ASKS) && unsafe { direct::send_part(block, conns, message, direct_part)? },
        false => may_ask(message.len_bytes) && direct::receive_part(block, conns, message, direct_part)?,
    };
    if is_direct {
        return Ok(());
    }
    if P::HAS_TILES && has(MESSAGE_TILES) && message.buffer.addr().is_multiple_of(16) {
        // SAFETY: obligation 1; parts and slots begin at multiples of 16 bytes.
        let ran = unsafe { send_recv::run_part::<_, P::Tiles>(block, conns, message, part) };
        return P::Tiles::close(block, conns, ran);
    }
    // SAFETY: obligation 1.
    unsafe { send_recv::run_part::<_, P>(block, conns, message, part) }
}

/// A walk from outside the library, over a mesh of at most [`MESH_MAX`] peers. Of the work that it gets, the algorithm says nothing.
///
/// # Safety
/// 1. As [`ring`].
#[inline(always)]
pub unsafe fn with_mesh<M, T, P, const POSTER: bool>(
    machine: M,
    args: &CollArgs,
    func: Func,
    walk: impl FnOnce(&GpuBlock<M, T, POSTER>, Conns<'_>, &CollWork) -> Result<(), Stop>,
) where
    M: KernelMachine,
    T: Element,
    P: Proto<GpuBlock<M, T, POSTER>>,
{
    // SAFETY: obligation 1.
    let block = unsafe { block_for::<M, T, POSTER>(machine, args, func) };
    let (index, place) = (block.machine().block_index(), block.machine().shared());
    let extent = extent(&args.launch, index);
    // SAFETY: obligations 1 and 2: the mesh has a connection each way to every other rank, at most so many.
    let conns = unsafe { SharedConns::<MESH_MAX>::load(block.machine(), place, &args.launch, extent) };
    let work = work::<_, P>(args, index, func, Algorithm::OneShot, T::DTYPE);
    let ran = walk(&block, conns, &work);
    // SAFETY: obligation 1.
    unsafe { finish(&block, conns, &args.launch, index, ran.is_ok()) };
}
