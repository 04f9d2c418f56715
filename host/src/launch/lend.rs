//! A block whose bulk operations lend user memory to networks instead of copying it into their slots.
//!
//! ```text
//! input -> slot                  the slot stands for the input
//! anything -> output and slot    the slot stands for the output
//! anything else -> slot          is computed there: slots received go back to their producers, so they cannot be lent
//! slot -> output                 nothing, where the message was expected and has been received there
//! ```
//! A loan ends when the network has the bytes, at the latest with the operation, which ends by flushing its links. Memory that
//! is lent and about to be written (in place, the output is an input that may still be waiting) is copied to its slot first, and
//! the send is moved there (`SendComm::relocate`).
//!
//! Measured (docs/measurements/2026-11-21-open-mpi.md): the copy is a tenth of the time of an all-reduce of 2 MiB over loopback.

use super::drive::Drive;
use super::wait::WaitContext;
use crate::mem::Segment;
use crate::net::bypass::BYPASS_MIN_BYTES;
use oxccl_device::gpu::cpu::CpuBlock;
use oxccl_device::gpu::{Block, How, Lines, Stop, Wait, Words};
use oxccl_device::prims::brief::is_brief;
use oxccl_shared::abi::{DataType, SlotHeader};
use oxccl_shared::reduce::Resolved;
use std::cell::RefMut;
use std::ptr::null_mut;
use std::sync::Arc;

/// A [`CpuBlock`] over what one communicator drives.
pub(crate) struct LendingBlock<'a> {
    cpu: CpuBlock<'a, WaitContext>,
    wait: &'a WaitContext,
    /// Where connections lie; what is elsewhere is the user's.
    memory: &'a [Arc<Segment>],
    lends: bool,
}

/// Brief messages go past the block: none is lent, and none is received where it belongs.
const _: () = assert!(!is_brief(BYPASS_MIN_BYTES));

/// To whom memory is lent.
struct Borrowers<'a> {
    drives: RefMut<'a, Vec<Box<dyn Drive>>>,
}

impl<'a> LendingBlock<'a> {
    #[inline]
    pub(crate) fn new(
        wait: &'a WaitContext,
        memory: &'a [Arc<Segment>],
        dtype: DataType,
        operator: &'a Resolved,
    ) -> Self {
        let lends = wait.drives().has_slots();
        LendingBlock { cpu: CpuBlock::new(wait, dtype, operator), wait, memory, lends }
    }

    /// What is driven, if a transfer of `len_bytes` may concern it.
    #[inline]
    fn borrowers(&self, len_bytes: usize) -> Option<Borrowers<'a>> {
        let may_concern = self.lends && len_bytes >= BYPASS_MIN_BYTES;
        may_concern.then(|| Borrowers { drives: self.wait.drives().all() })
    }

    fn is_users(&self, address: *const u8) -> bool {
        !self.memory.iter().any(|segment| {
            let start = segment.base().addr();
            (start..start + segment.len()).contains(&address.addr())
        })
    }

    /// Whether what is written to `dst` may be lent from there.
    fn can_lend_output(&self, dst: *mut u8, how: How) -> bool {
        // What bypasses the caches would be read from memory again.
        !how.stream && self.is_users(dst)
    }
}

impl Block for LendingBlock<'_> {
    #[inline]
    fn thread(&self) -> usize {
        self.cpu.thread()
    }

    #[inline]
    fn threads(&self) -> usize {
        self.cpu.threads()
    }

    #[inline]
    fn posts(&self) -> bool {
        self.cpu.posts()
    }

    #[inline(always)]
    fn lead(&self, wait: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
        self.cpu.lead(wait)
    }

    #[inline(always)]
    fn close(&self, mine: Result<(), Stop>) -> Result<(), Stop> {
        self.cpu.close(mine)
    }

    #[inline]
    fn sync(&self) {
        self.cpu.sync();
    }

    #[inline]
    fn idle(&self, on: Wait, polls: u32) -> Result<(), Stop> {
        self.cpu.idle(on, polls)
    }

    #[cold]
    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        self.cpu.refuse(on, expected, found)
    }

    #[inline]
    fn has_pre(&self) -> bool {
        self.cpu.has_pre()
    }

    #[inline]
    unsafe fn map_bulk(&self, dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize, how: How) {
        let Some(mut to) = self.borrowers(len_bytes) else {
            // SAFETY: the caller's obligations.
            return unsafe { self.cpu.map_bulk(dst, dst2, src, len_bytes, how) };
        };
        let src = to.source(src);
        to.return_loans(dst, len_bytes);
        let (mut out, mut out2) = (dst, dst2);
        let is_changed = (how.pre && self.cpu.has_pre()) || how.post;
        if !is_changed && self.is_users(src) {
            // SAFETY: see `lend`: the input is the user's.
            out2 = unsafe { to.lend(out2, src, len_bytes) };
            // SAFETY: as above.
            out = unsafe { to.lend(out, src, len_bytes) };
        } else if self.can_lend_output(dst, how) {
            // SAFETY: see `lend`: the output is the user's.
            out2 = unsafe { to.lend(out2, dst, len_bytes) };
        }
        let [out, out2] = if out.is_null() { [out2, out] } else { [out, out2] };
        if !out.is_null() {
            // SAFETY: the caller's obligations; the bytes that a lent slot stands for are those that were to be in it.
            unsafe { self.cpu.map_bulk(out, out2, src, len_bytes, how) };
        }
    }

    #[inline]
    unsafe fn combine_bulk(
        &self,
        dst: *mut u8,
        mut dst2: *mut u8,
        a: *const u8,
        b: *const u8,
        len_bytes: usize,
        how: How,
    ) {
        if let Some(mut to) = self.borrowers(len_bytes) {
            to.return_loans(dst, len_bytes);
            if self.can_lend_output(dst, how) {
                // SAFETY: see `lend`: the output is the user's.
                dst2 = unsafe { to.lend(dst2, dst, len_bytes) };
            }
        }
        // SAFETY: the caller's obligations.
        unsafe { self.cpu.combine_bulk(dst, dst2, a, b, len_bytes, how) };
    }
}

impl Words for LendingBlock<'_> {
    type Batch = <CpuBlock<'static, WaitContext> as Words>::Batch;

    #[inline]
    fn batch() -> Self::Batch {
        CpuBlock::<WaitContext>::batch()
    }

    #[inline]
    fn pre(&self, words: &mut [u64]) {
        self.cpu.pre(words);
    }

    #[inline]
    fn post(&self, words: &mut [u64]) {
        self.cpu.post(words);
    }

    #[inline]
    fn combine(&self, acc: &mut [u64], src: &[u64]) {
        self.cpu.combine(acc, src);
    }
}

impl Lines for LendingBlock<'_> {}

impl Borrowers<'_> {
    /// Where the bytes of `src` are: a slot from which further ones are to be filled may stand for other bytes itself, and one
    /// that has come may have been received elsewhere.
    fn source(&mut self, src: *const u8) -> *const u8 {
        let elsewhere = |drive: &mut Box<dyn Drive>| {
            drive.lent(src).or_else(|| drive.take_arrived(src).map(<*mut u8>::cast_const))
        };
        self.drives.iter_mut().find_map(elsewhere).unwrap_or(src)
    }

    /// Call before writing: what is lent of these bytes and has not left is copied into its slots.
    fn return_loans(&mut self, start: *const u8, len_bytes: usize) {
        self.drives.iter_mut().for_each(|drive| drive.return_loans(start, len_bytes));
    }

    /// Has `slot` stand for the bytes at `body`, if it can. Returns what is still to be written: the slot or null.
    ///
    /// # Safety
    /// 1. `slot` is null, or about to be filled with `len_bytes` and published.
    /// 2. `body` starts as many bytes of the user's, readable until the operation is over, which are what the slot would hold when
    ///    it is next driven, and are written by bulk operations of [`LendingBlock`] only; of messages, by nobody.
    unsafe fn lend(&mut self, slot: *mut u8, body: *const u8, len_bytes: usize) -> *mut u8 {
        // SAFETY: obligation 1; obligation 2, as every write through the block returns loans first. An operation ends with a flush, or
        // its communicator has failed and drives nothing any more.
        let mut lend = |drive: &mut Box<dyn Drive>| unsafe { drive.lend(slot, body, len_bytes) };
        let is_lent = !slot.is_null() && self.drives.iter_mut().any(&mut lend);
        if is_lent { null_mut() } else { slot }
    }
}
