//! A kernel as a GPU runs it, from the launch's arguments on, by one OS thread for each thread of its blocks: what is generic
//! over the machine needs no GPU.

mod machine;
mod short;

use machine::{BlockState, SharedMemory, Thread};
use oxccl_device::gpu::threads::GpuBlock;
use oxccl_device::gpu::{Among, AmongBlocks as _, Block as _, How, SHARED_BYTES};
use oxccl_device::kernel::run;
use oxccl_device::prims::{Ll, Simple};
use oxccl_shared::abi::{
    CollArgs, ConnControl, ConnEnd, ConnLayout, Func, KERNEL_PRE, KernelColl, KernelLaunch, KernelMonitor,
    KernelWait, Rank, StopCause,
};
use oxccl_shared::algo::chunk::ChannelCut;
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use oxccl_shared::reduce::{Element, OpArg};
use proptest::prelude::*;
use std::array::from_fn;
use std::ptr::null;

/// Of each block.
const THREADS: usize = 4;
const LAYOUT: ConnLayout =
    ConnLayout { ll_slot_bytes: 1024, ll128_slot_bytes: 1024, simple_slot_bytes: 1024 };

/// Zeroed memory of one connection.
fn connection() -> *mut ConnControl {
    let layout = std::alloc::Layout::from_size_align(LAYOUT.total_bytes(), 128).expect("a valid layout");
    // SAFETY: not of size 0. Leaked: two connections of a test.
    unsafe { std::alloc::alloc_zeroed(layout) }.cast()
}

/// The arguments of rank `rank` of two, and what they point to.
struct RankState {
    send: [ConnEnd; 1],
    recv: [ConnEnd; 1],
    send_cursors: [ProducerCursor; 1],
    recv_cursors: [ConsumerCursor; 1],
    ring: [u32; 3],
    monitor: KernelMonitor,
    src: Vec<f32>,
    dst: Vec<f32>,
    memory: SharedMemory,
}

impl RankState {
    fn new(rank: u32, ring: [*mut ConnControl; 2], count: usize) -> Self {
        let end = |producer: u32| ConnEnd::in_one(ring[producer as usize], LAYOUT, Rank(1 - rank));
        RankState {
            send: [end(rank)],
            recv: [end(1 - rank)],
            send_cursors: [ProducerCursor::default()],
            recv_cursors: [ConsumerCursor::default()],
            ring: [rank, 0, 1],
            monitor: KernelMonitor::default(),
            src: (0..count).map(|i| (i * 2) as f32 + rank as f32).collect(),
            dst: vec![f32::NAN; count],
            memory: SharedMemory([0; SHARED_BYTES]),
        }
    }

    fn args(&mut self, slot_bytes: usize) -> CollArgs {
        let launch = KernelLaunch {
            send: self.send.as_ptr(),
            recv: self.recv.as_ptr(),
            send_cursors: self.send_cursors.as_mut_ptr(),
            recv_cursors: self.recv_cursors.as_mut_ptr(),
            rings: self.ring.as_ptr(),
            trees: null(),
            monitor: &self.monitor,
            number: 41,
            nconns: 1,
            nchannels: 1,
            rank: Rank(self.ring[0]),
            nranks: 2,
            nmessages: 0,
            tile_bytes: 0,
        };
        let slice_elems = (slot_bytes / size_of::<f32>()) as u64;
        let coll = KernelColl {
            src: self.src.as_ptr().cast(),
            dst: self.dst.as_mut_ptr().cast(),
            cut: ChannelCut::new(self.src.len(), 1, 4),
            chunk_elems: 2 * slice_elems,
            slice_elems,
            arg: OpArg::NONE,
            kind: 0,
            flags: 0,
            func: Func::AllReduce as u32,
            root: Rank(0),
            tag: 7,
            host_ranks: 0,
        };
        CollArgs { launch, coll }
    }
}

/// A pointer that the threads of a test share.
struct Shared<T>(T);
// SAFETY: what the arguments point to lives until the threads have ended, and kernels share it as the library's do.
unsafe impl<T> Sync for Shared<T> {}

type Block<'a> = GpuBlock<Thread<'a>, f32, false>;

/// Two ranks all-reduce `count` elements twice: the second kernel goes on where the first left the connections.
fn all_reduce<P: for<'a> run::ByTiles<Block<'a>>>(count: usize, slot_bytes: usize) {
    let ring = [connection(), connection()];
    let mut ranks = [0, 1].map(|rank| RankState::new(rank, ring, count));
    for _ in 0..2 {
        let args = Shared(ranks.each_mut().map(|rank| rank.args(slot_bytes)));
        let blocks = ranks.each_mut().map(|rank| BlockState::new(&mut rank.memory, THREADS));
        let (args, blocks) = (&args, &blocks);
        std::thread::scope(|scope| {
            for (rank, index) in (0..2).flat_map(|rank| (0..THREADS).map(move |index| (rank, index))) {
                scope.spawn(move || {
                    let machine = Thread::new(index, &blocks[rank], None);
                    // SAFETY: the arguments are those of two ranks that are connected in a ring.
                    unsafe { run::ring::<_, f32, P, false>(machine, &args.0[rank], Func::AllReduce) };
                });
            }
        });
        for rank in &mut ranks {
            assert_eq!(rank.monitor.stopped.read(), None);
            for (i, value) in rank.dst.iter_mut().enumerate() {
                assert_eq!(*value, (i * 4) as f32 + 1.0, "element {i} of {count}");
                *value = f32::NAN;
            }
        }
    }
    assert_ne!(ranks[0].send_cursors[0].step(), ProducerCursor::default().step());
}

#[test]
fn an_all_reduce_by_words() {
    for count in [1, 5, 64, 1000] {
        all_reduce::<Ll<1>>(count, 504);
    }
}

#[test]
fn an_all_reduce_by_whole_slots() {
    for count in [1, 5, 64, 1000] {
        all_reduce::<Simple>(count, 1024);
    }
}

/// Rank 0's kernel waits for rank 1, which never comes: it says so while it waits, and stops when it is told to.
fn waits_for_ever<P: for<'a> run::ByTiles<Block<'a>>>(slot_bytes: usize) {
    let mut rank = RankState::new(0, [connection(), connection()], 64);
    let args = Shared(rank.args(slot_bytes));
    let state = BlockState::new(&mut rank.memory, THREADS);
    let (args, state, monitor) = (&args, &state, &rank.monitor);
    std::thread::scope(|scope| {
        for index in 0..THREADS {
            scope.spawn(move || {
                let machine = Thread::new(index, state, None);
                // SAFETY: the arguments are those of a rank whose neighbour does nothing.
                unsafe { run::ring::<_, f32, P, false>(machine, &args.0, Func::AllReduce) };
            });
        }
        let first = loop {
            match monitor.stands[0].read() {
                Some(stands) => break stands,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(first.wait, KernelWait { peer: Rank(1), is_credit: false, step: 0 });
        assert_eq!(first.launch, 41);
        while monitor.stands[0].read().is_none_or(|stands| stands.now_ns <= first.now_ns) {
            std::thread::yield_now();
        }
        monitor.abort.store_relaxed(1);
    });
    let stopped = rank.monitor.stopped.read().expect("it was told to stop");
    assert_eq!((stopped.cause, stopped.peer), (StopCause::Aborted, Rank(1)));
    assert!(rank.monitor.stands[1..].iter().all(|stand| stand.read().is_none()), "there is one block");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of polls")]
fn a_kernel_that_waits_says_where_it_stands() {
    waits_for_ever::<Ll<1>>(504);
    waits_for_ever::<Simple>(1024);
}

/// What a bulk operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Copies,
    /// By shifted packs where it must.
    Shifts,
    /// Of several blocks together.
    CopiesAmong,
    Combines,
    /// So many inputs, of several blocks together.
    Reduces(usize),
}

impl Does {
    fn operands(self) -> usize {
        match self {
            Does::Copies | Does::Shifts | Does::CopiesAmong => 1,
            Does::Combines => 2,
            Does::Reduces(inputs) => inputs,
        }
    }
}

/// The most operands, and outputs.
const PLACES: usize = 4;

/// A bulk operation of a block, each operand and output so many bytes behind an aligned place.
#[derive(Clone, Copy, Debug)]
struct Bulk {
    len_bytes: usize,
    /// 1, or 4 where something is reduced.
    elem_bytes: usize,
    operands: [usize; PLACES],
    outputs: [usize; PLACES],
    /// Of these.
    noutputs: usize,
    does: Does,
    /// That have it together.
    blocks: u32,
    /// What a sum multiplies the operands by to which the pre-operation applies.
    factor: Option<u8>,
    /// Which operand the first output is.
    in_place: Option<usize>,
}

/// `len` bytes that differ, between others that must stay as they are.
struct Guarded {
    words: Vec<u128>,
    at: usize,
    len: usize,
}

impl Guarded {
    const GUARD: usize = 48;

    fn new(len: usize, misaligned: usize, seed: usize) -> Guarded {
        let at = Self::GUARD + misaligned;
        let mut guarded = Guarded { words: vec![0; (at + len + Self::GUARD).div_ceil(16)], at, len };
        for i in 0..at + len + Self::GUARD {
            // SAFETY: within the words.
            unsafe { guarded.start().add(i).write((i * 7 + seed * 31 + i / 251) as u8) };
        }
        guarded
    }

    fn start(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    fn place(&mut self) -> *mut u8 {
        let at = self.at;
        self.start().wrapping_add(at)
    }

    fn all(&mut self) -> Vec<u8> {
        // SAFETY: within the words.
        unsafe { std::slice::from_raw_parts(self.start(), self.at + self.len + Self::GUARD) }.to_vec()
    }
}

/// What all bytes of all buffers are afterwards, and what they should be.
fn run_bulk(bulk: Bulk) -> [Vec<Vec<u8>>; 2] {
    let Bulk { len_bytes: len, elem_bytes, operands, outputs, noutputs, does, .. } = bulk;
    let at = [operands, outputs].concat();
    let mut buffers: Vec<Guarded> = (1..).zip(&at).map(|(seed, at)| Guarded::new(len, *at, seed)).collect();
    let mut wanted: Vec<Vec<u8>> = buffers.iter_mut().map(Guarded::all).collect();
    let value = |at: usize| {
        let of = |operand: usize| {
            let mut bytes = [0; 4];
            let from = &wanted[operand][Guarded::GUARD + operands[operand] + at..];
            bytes[..elem_bytes].copy_from_slice(&from[..elem_bytes]);
            u32::from_le_bytes(bytes)
        };
        let pre = |value: u32| value.wrapping_mul(bulk.factor.unwrap_or(1).into());
        let first = if matches!(does, Does::Reduces(_)) { pre(of(0)) } else { of(0) };
        (1..does.operands()).fold(first, |sum, operand| sum.wrapping_add(pre(of(operand))))
    };
    let elements = (0..len).step_by(elem_bytes);
    let values: Vec<u8> =
        elements.flat_map(|at| value(at).to_le_bytes().into_iter().take(elem_bytes)).collect();
    let written = |n: usize| if n == 0 { bulk.in_place.unwrap_or(PLACES) } else { PLACES + n };
    for buffer in (0..noutputs).map(written) {
        wanted[buffer][Guarded::GUARD + at[buffer]..][..len].copy_from_slice(&values);
    }
    let places: Vec<*mut u8> = buffers.iter_mut().map(Guarded::place).collect();
    let outputs: [_; PLACES] =
        from_fn(|n| if n < noutputs { places[written(n)] } else { std::ptr::null_mut() });
    let inputs: [_; PLACES] = from_fn(|operand| places[operand].cast_const());
    let mut rank = RankState::new(0, [connection(), connection()], 0);
    let mut args = rank.args(1024);
    if let Some(factor) = bulk.factor {
        args.coll.flags = KERNEL_PRE;
        args.coll.arg.scalar_bits = factor.into();
    }
    let mut memory = SharedMemory([0; SHARED_BYTES]);
    let state = BlockState::new(&mut memory, THREADS);
    let shared = Shared((inputs, outputs, args));
    let (shared, state) = (&shared, &state);
    std::thread::scope(|scope| {
        for index in 0..THREADS {
            scope.spawn(move || {
                let Shared((inputs, outputs, args)) = shared;
                let machine = || Thread::new(index, state, None);
                // SAFETY: the monitor lives; all threads run the same operation on buffers that are theirs.
                unsafe {
                    match elem_bytes {
                        4 => do_bulk::<u32>(machine, bulk, inputs, outputs, args),
                        _ => do_bulk::<u8>(machine, bulk, inputs, outputs, args),
                    }
                }
            });
        }
    });
    [buffers.iter_mut().map(Guarded::all).collect(), wanted]
}

/// A thread's part of a bulk operation of elements of type `T`.
///
/// # Safety
/// 1. The arguments live; all threads of the block call it for buffers that are theirs.
unsafe fn do_bulk<'a, T: Element>(
    machine: impl Fn() -> Thread<'a>,
    Bulk { len_bytes: len, does, blocks, .. }: Bulk,
    &[a, b, c, d]: &[*const u8; PLACES],
    &[to, to2, to3, to4]: &[*mut u8; PLACES],
    CollArgs { launch, coll }: &CollArgs,
) {
    let how = How { pre: true, ..How::default() };
    // SAFETY: obligation 1 in every call.
    unsafe {
        let reducing = || GpuBlock::<_, T, false>::reducing(machine(), launch, coll);
        match does {
            Does::Copies => GpuBlock::<_, T, false>::moving(machine(), launch).map_bulk(to, to2, a, len, how),
            Does::Shifts => {
                GpuBlock::<_, T, false, true>::moving(machine(), launch).map_bulk(to, to2, a, len, how);
            }
            Does::CopiesAmong => (0..blocks).for_each(|index| {
                let among = Among { index, count: blocks };
                GpuBlock::<_, T, false>::moving(machine(), launch).copy_among(among, to, to2, a, len);
            }),
            Does::Combines => reducing().combine_bulk(to, to2, a, b, len, how),
            // As if each thread were one of each block.
            Does::Reduces(inputs) => (0..blocks).for_each(|index| {
                let (block, among) = (reducing(), Among { index, count: blocks });
                match inputs {
                    2 => block.reduce_among(among, [to, to2], [a, b], len, how),
                    3 => block.reduce_among(among, [to, to2, to3], [a, b, c], len, how),
                    _ => block.reduce_among(among, [to, to2, to3, to4], [a, b, c, d], len, how),
                }
            }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 1000 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn bulk_operations_at_any_alignment(
        len_bytes in prop_oneof![0usize..100, 0usize..3000],
        operands in any::<[u8; PLACES]>(),
        outputs in any::<[u8; PLACES]>(),
        noutputs in 1..=PLACES,
        unit in prop::sample::select(&[1u8, 4, 16][..]),
        does in prop_oneof![Just(Does::Copies), Just(Does::Shifts), Just(Does::CopiesAmong), Just(Does::Combines), (2..=PLACES).prop_map(Does::Reduces)],
        blocks in 1u32..4,
        factor: Option<u8>,
        in_place in proptest::option::of(0..PLACES),
        lie_alike: [bool; 2],
        elem_bytes in prop::sample::select(&[1usize, 4][..]),
    ) {
        let unit = unit.max(elem_bytes as u8);
        let len_bytes = len_bytes / elem_bytes * elem_bytes;
        let [operands, outputs] =
            [operands, outputs].map(|at| at.map(|at| usize::from(at % 16 / unit * unit)));
        let operands = if lie_alike[0] { [operands[0]; PLACES] } else { operands };
        // In place, the first one lies where its operand does, and the others like it or not.
        let outputs = if lie_alike[1] { [in_place.map_or(outputs[0], |_| operands[0]); PLACES] } else { outputs };
        let in_place = in_place.map(|operand| operand % does.operands());
        let noutputs = noutputs.min(does.operands().max(2));
        let [found, wanted] =
            run_bulk(Bulk { len_bytes, elem_bytes, operands, outputs, noutputs, does, blocks, factor, in_place });
        prop_assert_eq!(found, wanted);
    }
}
