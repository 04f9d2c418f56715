//! One OS thread as a thread of a GPU's block.

use oxccl_device::gpu::{KernelMachine, NoEngine, Pack, SHARED_BYTES};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Condvar, Mutex, PoisonError};
use std::time::SystemTime;

#[repr(C, align(16))]
pub struct SharedMemory(pub [u8; SHARED_BYTES]);

/// What the threads of a block share. Votes are cast in turn: see `any_of_all`.
pub struct BlockState {
    memory: *mut SharedMemory,
    threads: usize,
    barrier: Barrier,
    votes: [AtomicBool; 3],
    /// Threads that have ended.
    ended: Mutex<usize>,
    all_ended: Condvar,
}

impl BlockState {
    pub fn new(memory: &mut SharedMemory, threads: usize) -> BlockState {
        BlockState {
            memory,
            threads,
            barrier: Barrier::new(threads),
            votes: Default::default(),
            ended: Mutex::new(0),
            all_ended: Condvar::new(),
        }
    }

    /// A thread has ended.
    pub fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.all_ended.notify_all();
    }

    fn await_end(&self) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.all_ended.wait_while(ended, |ended| *ended < self.threads));
    }
}

// SAFETY: the memory is for the threads of the block, which go through barriers.
unsafe impl Sync for BlockState {}

pub struct Thread<'a> {
    index: usize,
    round: Cell<usize>,
    block: &'a BlockState,
    /// The block of the kernel before, where this one has started before it has ended.
    previous: Option<&'a BlockState>,
}

impl<'a> Thread<'a> {
    pub fn new(index: usize, block: &'a BlockState, previous: Option<&'a BlockState>) -> Thread<'a> {
        Thread { index, round: Cell::new(0), block, previous }
    }
}

impl KernelMachine for Thread<'_> {
    type Engine = NoEngine;

    const WARP_THREADS: u32 = 1;

    fn thread_index(&self) -> u32 {
        self.index as u32
    }

    fn block_threads(&self) -> u32 {
        self.block.threads as u32
    }

    fn block_index(&self) -> u32 {
        0
    }

    /// Asked now and then by threads that wait: there are more of them than processors.
    fn speaks_for() -> Option<u32> {
        Some(0)
    }

    fn now_ns() -> u64 {
        std::thread::yield_now();
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since_epoch.expect("a clock after 1970").as_nanos() as u64
    }

    fn shared(&self) -> *mut u8 {
        self.block.memory.cast()
    }

    fn sync_all(&self) {
        self.block.barrier.wait();
    }

    fn await_previous(&self) {
        self.previous.iter().for_each(|previous| previous.await_end());
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
