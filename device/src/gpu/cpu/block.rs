//! One thread as a block.

use super::reduce::{self, Flags, ReduceTable};
use crate::gpu::{Block, How, Lines, Stop, Wait, Words, is_onto_itself};
use core::ptr::null_mut;
use oxccl_shared::abi::SlotHeader;
use oxccl_shared::reduce::Resolved;
use oxccl_shared::sync::cpu_relax;

/// Words of one batch: two cache lines, which amortises a call of the reduction table over enough elements.
const BATCH_WORDS: usize = 16;

/// The host's side of a waiting kernel: it drives proxies and the thread's other blocks, and checks abort and
/// deadlines.
pub trait Waiter {
    /// Polls before the first call of [`Self::wait`], and between two calls. A power of two.
    fn spins(&self) -> u32;

    /// The kernel has polled in vain for a while.
    fn wait(&self, on: Wait, polls: u32) -> Result<(), Stop>;

    /// The kernel received another operation's slot.
    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop;
}

/// A block of one CPU thread.
pub struct CpuBlock<'a, W: Waiter> {
    waiter: &'a W,
    spin_mask: u32,
    table: &'static ReduceTable,
    operator: &'a Resolved,
    elem_bytes: usize,
}

impl<'a, W: Waiter> CpuBlock<'a, W> {
    /// A block that reduces elements of `dtype` with `operator`.
    #[inline]
    pub fn new(waiter: &'a W, dtype: oxccl_shared::abi::DataType, operator: &'a Resolved) -> Self {
        let spins = waiter.spins();
        debug_assert!(spins.is_power_of_two());
        CpuBlock {
            waiter,
            spin_mask: spins - 1,
            table: reduce::table(dtype, operator.kind),
            operator,
            elem_bytes: dtype.size_bytes(),
        }
    }

    #[inline]
    fn flags(&self, how: How) -> Flags {
        let mut flags = Flags::empty();
        flags.set(Flags::PRE, how.pre && self.operator.pre);
        flags.set(Flags::POST, how.post && self.operator.post);
        flags.set(Flags::STREAM, how.stream);
        flags.set(Flags::STREAM2, how.stream2);
        flags
    }

    #[inline]
    fn map_words(&self, words: &mut [u64], flags: Flags) {
        let count = words.len() * 8 / self.elem_bytes;
        let words = words.as_mut_ptr().cast::<u8>();
        // SAFETY: `words` holds `count` elements, transformed in place.
        unsafe { (self.table.map)(words, null_mut(), words, count, &self.operator.arg, flags) };
    }
}

impl<W: Waiter> Block for CpuBlock<'_, W> {
    #[inline]
    fn thread(&self) -> usize {
        0
    }

    #[inline]
    fn threads(&self) -> usize {
        1
    }

    #[inline]
    fn posts(&self) -> bool {
        true
    }

    #[inline(always)]
    fn lead(&self, wait: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
        wait()
    }

    #[inline(always)]
    fn close(&self, mine: Result<(), Stop>) -> Result<(), Stop> {
        mine
    }

    #[inline]
    fn sync(&self) {}

    #[inline]
    fn idle(&self, on: Wait, polls: u32) -> Result<(), Stop> {
        if polls & self.spin_mask != 0 {
            cpu_relax();
            return Ok(());
        }
        self.waiter.wait(on, polls)
    }

    #[cold]
    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        self.waiter.refuse(on, expected, found)
    }

    #[inline]
    fn has_pre(&self) -> bool {
        self.operator.pre
    }

    #[inline]
    unsafe fn map_bulk(&self, dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize, how: How) {
        let flags = self.flags(how);
        if is_onto_itself(dst, dst2, src) && !flags.intersects(Flags::PRE | Flags::POST) {
            return;
        }
        // SAFETY: obligations 1 and 2 are the table's.
        unsafe { (self.table.map)(dst, dst2, src, len_bytes / self.elem_bytes, &self.operator.arg, flags) };
    }

    #[inline]
    unsafe fn combine_bulk(
        &self,
        dst: *mut u8,
        dst2: *mut u8,
        a: *const u8,
        b: *const u8,
        len_bytes: usize,
        how: How,
    ) {
        let count = len_bytes / self.elem_bytes;
        // SAFETY: obligations 1 and 2 are the table's.
        unsafe { (self.table.combine)(dst, dst2, a, b, count, &self.operator.arg, self.flags(how)) };
    }
}

impl<W: Waiter> Words for CpuBlock<'_, W> {
    type Batch = [u64; BATCH_WORDS];

    #[inline]
    fn batch() -> Self::Batch {
        [0; BATCH_WORDS]
    }

    #[inline]
    fn pre(&self, words: &mut [u64]) {
        if self.operator.pre {
            self.map_words(words, Flags::PRE);
        }
    }

    #[inline]
    fn post(&self, words: &mut [u64]) {
        if self.operator.post {
            self.map_words(words, Flags::POST);
        }
    }

    #[inline]
    fn combine(&self, acc: &mut [u64], src: &[u64]) {
        let count = acc.len() * 8 / self.elem_bytes;
        let acc = acc.as_mut_ptr().cast::<u8>();
        let arg = &self.operator.arg;
        // SAFETY: both hold `count` elements; the result replaces the first operand.
        unsafe {
            (self.table.combine)(acc, null_mut(), acc, src.as_ptr().cast(), count, arg, Flags::empty())
        };
    }
}

impl<W: Waiter> Lines for CpuBlock<'_, W> {}
