//! What a kernel needs of the machine that runs it.

use oxccl_shared::reduce::{self, Element, Prod, Sum};

/// 16 bytes of packed elements.
pub type Pack = [u64; 2];

/// What a GPU's memory and its links move at once. Rows of packs that begin elsewhere touch one line more.
pub const LINE_BYTES: usize = 128;

/// Bytes of shared memory that a kernel uses.
pub const SHARED_BYTES: usize = 2048;

/// One thread's view of a machine whose blocks have many threads. Over it, [`super::threads::GpuBlock`] is a block and
/// `kernel` runs what the host launched; a machine that can move lines of 128 bytes implements [`super::Lines`] for the
/// block besides.
///
/// Threads that have ended count as having come to every barrier.
pub trait KernelMachine {
    /// What carries out bulk copies, or [`NoEngine`].
    type Engine: CopyEngine;

    /// Threads that run in lock step.
    const WARP_THREADS: u32;

    /// Whether [`Self::of_next_lane`] is there.
    const HANDS_ON: bool = Self::WARP_THREADS == 1;

    /// This thread's index in its block.
    fn thread_index(&self) -> u32;

    /// Threads in a block.
    fn block_threads(&self) -> u32;

    /// This block's index in the grid.
    fn block_index(&self) -> u32;

    /// The index of the block for which this thread says where it stands while it waits: of one thread in each warp, of those that wait. A machine
    /// whose threads do not know says nothing.
    #[inline(always)]
    fn speaks_for() -> Option<u32> {
        None
    }

    /// Nanoseconds on a clock that all blocks share; never 0.
    fn now_ns() -> u64;

    /// [`SHARED_BYTES`] of the block's memory, aligned to 16. A kernel asks once.
    fn shared(&self) -> *mut u8;

    /// Waits for all threads of the block; they see what each other wrote.
    fn sync_all(&self);

    /// Waits until the kernels before this one on its stream have ended; what they wrote is visible. A kernel that the host may start early
    /// ([`starts_early`](oxccl_shared::algo::kernels::Kernel::starts_early)) calls it, by every thread, before it touches anything that a kernel
    /// writes or the user owns. On a machine that starts kernels only then there is nothing to wait for.
    #[inline(always)]
    fn await_previous(&self) {}

    /// The next kernel on the stream may start now, up to its [`Self::await_previous`], if it is one that may start early. Called after ours: so
    /// at most one kernel of a stream waits beside the one that runs.
    #[inline(always)]
    fn admit_next(&self) {}

    /// As [`Self::sync_all`]; whether any of them said `mine`.
    fn any_of_all(&self, mine: bool) -> bool;

    /// The same for the first `workers` threads of a block that has a `POSTER`, a multiple of [`Self::WARP_THREADS`], or for all
    /// threads of one that has none. A machine without such barriers refuses a poster when it is compiled.
    fn any_of_workers<const POSTER: bool>(&self, workers: u32, mine: bool) -> bool;

    /// Reads a pack, which is read once: caches need not keep it.
    ///
    /// # Safety
    /// 1. `at` is 16-byte aligned and readable.
    unsafe fn load_pack(at: usize) -> Pack;

    /// As [`Self::load_pack`], but through a cache: the thread beside this one reads the same pack.
    ///
    /// # Safety
    /// 1. As [`Self::load_pack`].
    #[inline(always)]
    unsafe fn load_pack_for_two(at: usize) -> Pack {
        // SAFETY: obligation 1.
        unsafe { Self::load_pack(at) }
    }

    /// Writes a pack.
    ///
    /// # Safety
    /// 1. `at` is 16-byte aligned and writable.
    unsafe fn store_pack(at: usize, value: Pack);

    /// What the next thread of this one's warp said, the first one being next to the last. All threads of a warp call it together.
    #[inline(always)]
    fn of_next_lane(value: Pack) -> Pack {
        const { assert!(!Self::HANDS_ON || Self::WARP_THREADS == 1, "a machine of warps says how") };
        value
    }

    /// Reads a unit of 1, 2, 4 or 8 bytes.
    ///
    /// # Safety
    /// 1. `at` is aligned to it and readable; any bytes are a `T`.
    #[inline(always)]
    unsafe fn load_unit<T: Copy>(at: usize) -> T {
        // SAFETY: obligation 1.
        unsafe { (at as *const T).read() }
    }

    /// Writes a unit.
    ///
    /// # Safety
    /// 1. `at` is aligned to it and writable; a `T` has no padding.
    #[inline(always)]
    unsafe fn store_unit<T: Copy>(at: usize, value: T) {
        // SAFETY: obligation 1.
        unsafe { (at as *mut T).write(value) }
    }

    /// The same address. A machine can hide from its compiler where it comes from: that would otherwise keep every place at a constant
    /// distance of it in a register of its own, from turn to turn of a loop.
    #[inline(always)]
    fn hidden(at: usize) -> usize {
        at
    }

    /// The sums of two words' elements.
    #[inline(always)]
    fn sum_word<T: Element>(a: u64, b: u64) -> u64 {
        reduce::combine_word::<T, Sum>(a, b)
    }

    /// The products of two words' elements.
    #[inline(always)]
    fn prod_word<T: Element>(a: u64, b: u64) -> u64 {
        reduce::combine_word::<T, Prod>(a, b)
    }
}

/// What carries out bulk copies between a block's own memory, of which addresses are 32 bits, and everybody's. It reports loads to
/// *barriers* in the block's memory: of 8 bytes, each with a number of arrivals that end its phase, and one more for loads.
pub trait CopyEngine {
    /// Whether there is one. Nothing else of it is used where there is none.
    const PRESENT: bool;

    /// The memory that the launch gave each block: where it begins, and its bytes.
    fn memory() -> (u32, u32);

    /// # Safety
    /// 1. `at` is 8-byte aligned in the block's memory, and nobody uses it yet.
    unsafe fn new_barrier(at: u32, arrivals: u32);

    /// The barriers that this thread made are ready for the engine, and for those whom it meets.
    fn show_barriers();

    /// # Safety
    /// 1. `at` is a barrier, and this arrival is among those of its phase.
    unsafe fn arrive(at: u32);

    /// One arrival of a warp, all of whose threads call it: what they wrote to the block's memory is what the engine reads later.
    ///
    /// # Safety
    /// 1. As [`Self::arrive`].
    unsafe fn arrive_as_warp(at: u32);

    /// The phase lasts until so many more bytes have been loaded.
    ///
    /// # Safety
    /// 1. `at` is a barrier of whose phase not all have arrived.
    unsafe fn expect(at: u32, load_bytes: u32);

    /// Whether a phase of this parity has ended; the first one has parity 0. With `patience` it may wait a little.
    ///
    /// # Safety
    /// 1. `at` is a barrier; the phase is its latest complete one, or the one before, or the next.
    unsafe fn has_ended(at: u32, parity: u32, patience: bool) -> bool;

    /// Asks for a load, which is reported to a barrier.
    ///
    /// # Safety
    /// 1. `to` is 16-byte aligned in the block's memory, `from` is 16-byte aligned, `bytes` is a multiple of 16; both are valid until
    ///    the barrier's phase ends.
    unsafe fn load(to: u32, from: usize, bytes: u32, barrier: u32);

    /// Asks for a store.
    ///
    /// # Safety
    /// 1. As [`Self::load`], until the store is waited for.
    unsafe fn store(to: usize, from: u32, bytes: u32);

    /// What this thread asked to store since the last call is a group.
    fn commit();

    /// Waits until all groups of this thread but the last [`super::STORES_READING`] have been read.
    fn wait_read();

    /// Waits until all groups of this thread but the last [`super::STORES_RECENT`] are complete.
    fn wait_recent();

    /// Waits until all groups of this thread are complete.
    fn wait_stored();

    /// Orders accesses of threads that this one has seen, or done, before the engine's later ones, and the other way round.
    fn fence();

    /// The same for the block's memory only.
    fn fence_own();

    /// # Safety
    /// 1. `at` is 16-byte aligned in the block's memory.
    unsafe fn load_pack(at: u32) -> Pack;

    /// # Safety
    /// 1. As [`Self::load_pack`], and nobody else uses it.
    unsafe fn store_pack(at: u32, value: Pack);

    /// # Safety
    /// 1. `at` lies in the block's memory.
    unsafe fn load_byte(at: u32) -> u8;

    /// # Safety
    /// 1. As [`Self::load_byte`], and nobody else uses it.
    unsafe fn store_byte(at: u32, value: u8);

    /// A word that several threads may read and write; relaxed.
    ///
    /// # Safety
    /// 1. `at` is 4-byte aligned in the block's memory.
    unsafe fn load_flag(at: u32) -> u32;

    /// The same.
    ///
    /// # Safety
    /// 1. As [`Self::load_flag`].
    unsafe fn store_flag(at: u32, value: u32);
}

/// For machines without an engine. Nothing of it is called.
pub struct NoEngine;

impl CopyEngine for NoEngine {
    const PRESENT: bool = false;

    fn memory() -> (u32, u32) {
        (0, 0)
    }
    unsafe fn new_barrier(_at: u32, _arrivals: u32) {}
    fn show_barriers() {}
    unsafe fn arrive(_at: u32) {}
    unsafe fn arrive_as_warp(_at: u32) {}
    unsafe fn expect(_at: u32, _load_bytes: u32) {}
    unsafe fn has_ended(_at: u32, _parity: u32, _patience: bool) -> bool {
        true
    }
    unsafe fn load(_to: u32, _from: usize, _bytes: u32, _barrier: u32) {}
    unsafe fn store(_to: usize, _from: u32, _bytes: u32) {}
    fn commit() {}
    fn wait_read() {}
    fn wait_recent() {}
    fn wait_stored() {}
    fn fence() {}
    fn fence_own() {}
    unsafe fn load_pack(_at: u32) -> Pack {
        [0; 2]
    }
    unsafe fn store_pack(_at: u32, _value: Pack) {}
    unsafe fn load_byte(_at: u32) -> u8 {
        0
    }
    unsafe fn store_byte(_at: u32, _value: u8) {}
    unsafe fn load_flag(_at: u32) -> u32 {
        0
    }
    unsafe fn store_flag(_at: u32, _value: u32) {}
}
