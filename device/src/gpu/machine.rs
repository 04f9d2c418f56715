//! What a kernel needs of the machine that runs it.

use oxccl_shared::reduce::{self, Element, Prod, Sum};

/// 16 bytes of packed elements.
pub type Pack = [u64; 2];

/// Bytes of shared memory that a kernel uses.
pub const SHARED_BYTES: usize = 2048;

/// One thread's view of a machine whose blocks have many threads. Over it, [`super::threads::GpuBlock`] is a block and
/// `kernel` runs what the host launched; a machine that can move lines of 128 bytes implements [`super::Lines`] for the
/// block besides.
///
/// Threads that have ended count as having come to every barrier.
pub trait KernelMachine {
    /// Threads that run in lock step.
    const WARP_THREADS: u32;

    /// This thread's index in its block.
    fn thread_index(&self) -> u32;

    /// Threads in a block.
    fn block_threads(&self) -> u32;

    /// This block's index in the grid.
    fn block_index(&self) -> u32;

    /// Nanoseconds on a clock that all blocks share; never 0.
    fn now_ns() -> u64;

    /// [`SHARED_BYTES`] of the block's memory, aligned to 16. A kernel asks once.
    fn shared(&self) -> *mut u8;

    /// Waits for all threads of the block; they see what each other wrote.
    fn sync_all(&self);

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

    /// Writes a pack.
    ///
    /// # Safety
    /// 1. `at` is 16-byte aligned and writable.
    unsafe fn store_pack(at: usize, value: Pack);

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
