//! A kernel as a GPU runs it, from the launch's arguments on, by one OS thread for each thread of its blocks: what is generic
//! over the machine needs no GPU.

use oxccl_device::gpu::{KernelMachine, NoEngine, Pack, SHARED_BYTES};
use oxccl_device::kernel::run;
use oxccl_device::prims::{Ll, Simple};
use oxccl_shared::abi::{
    CollArgs, ConnControl, ConnEnd, ConnLayout, Func, KernelColl, KernelLaunch, KernelMonitor, Rank,
};
use oxccl_shared::algo::chunk::ChannelCut;
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use oxccl_shared::reduce::OpArg;
use std::cell::Cell;
use std::ptr::null;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// Of each block.
const THREADS: usize = 4;
const LAYOUT: ConnLayout =
    ConnLayout { ll_slot_bytes: 1024, ll128_slot_bytes: 1024, simple_slot_bytes: 1024 };

#[repr(C, align(16))]
struct SharedMemory([u8; SHARED_BYTES]);

/// What the threads of a block share. Votes are cast in turn: see `any_of_all`.
struct BlockState {
    memory: *mut SharedMemory,
    barrier: Barrier,
    votes: [AtomicBool; 3],
}

// SAFETY: the memory is for the threads of the block, which go through barriers.
unsafe impl Sync for BlockState {}

struct Thread<'a> {
    index: usize,
    round: Cell<usize>,
    block: &'a BlockState,
}

impl KernelMachine for Thread<'_> {
    type Engine = NoEngine;

    const WARP_THREADS: u32 = 1;

    fn thread_index(&self) -> u32 {
        self.index as u32
    }

    fn block_threads(&self) -> u32 {
        THREADS as u32
    }

    fn block_index(&self) -> u32 {
        0
    }

    fn now_ns() -> u64 {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since_epoch.expect("a clock after 1970").as_nanos() as u64
    }

    fn shared(&self) -> *mut u8 {
        self.block.memory.cast()
    }

    fn sync_all(&self) {
        self.block.barrier.wait();
    }

    fn any_of_all(&self, mine: bool) -> bool {
        let round = self.round.get();
        self.round.set((round + 1) % 3);
        if mine {
            self.block.votes[round].store(true, Ordering::Relaxed);
        }
        self.block.votes[(round + 1) % 3].store(false, Ordering::Relaxed);
        self.sync_all();
        self.block.votes[round].load(Ordering::Relaxed)
    }

    fn any_of_workers<const POSTER: bool>(&self, _workers: u32, mine: bool) -> bool {
        const { assert!(!POSTER) };
        self.any_of_all(mine)
    }

    unsafe fn load_pack(at: usize) -> Pack {
        // SAFETY: obligation 1.
        unsafe { (at as *const Pack).read() }
    }

    unsafe fn store_pack(at: usize, value: Pack) {
        // SAFETY: obligation 1.
        unsafe { (at as *mut Pack).write(value) }
    }
}

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
            timeout_ns: 0,
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

type Block<'a> = oxccl_device::gpu::threads::GpuBlock<Thread<'a>, f32, false>;

/// Two ranks all-reduce `count` elements twice: the second kernel goes on where the first left the connections.
fn all_reduce<P: for<'a> run::ByTiles<Block<'a>>>(count: usize, slot_bytes: usize) {
    let ring = [connection(), connection()];
    let mut ranks = [0, 1].map(|rank| RankState::new(rank, ring, count));
    for _ in 0..2 {
        let args = Shared(ranks.each_mut().map(|rank| rank.args(slot_bytes)));
        let blocks = ranks.each_mut().map(|rank| BlockState {
            memory: &mut rank.memory,
            barrier: Barrier::new(THREADS),
            votes: Default::default(),
        });
        let (args, blocks) = (&args, &blocks);
        std::thread::scope(|scope| {
            for (rank, index) in (0..2).flat_map(|rank| (0..THREADS).map(move |index| (rank, index))) {
                scope.spawn(move || {
                    let machine = Thread { index, round: Cell::new(0), block: &blocks[rank] };
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
