//! A thread block as a [`Block`].

use super::sweep::{Places, Share};
use super::tiles::Tiles;
use super::{arith, bulk};
use crate::gpu::{
    Among, AmongBlocks, Awaited, Block, End, Fold, How, KernelMachine, Pipe, Stop, Wait, Words,
    is_onto_itself,
};
use core::cell::Cell;
use core::marker::PhantomData;
use oxccl_shared::abi::{
    KERNEL_POST, KERNEL_PRE, KernelColl, KernelLaunch, KernelMonitor, KernelWait, SlotHeader, StopCause,
};
use oxccl_shared::algo::symmetric::reduced_max;
use oxccl_shared::reduce::{self, CombineKind, Element, Max, Min, OpArg};

/// Polls between two checks of the host's abort word, which is across PCIe: about half a millisecond. Nothing is said of waits that are
/// shorter.
const POLLS_PER_CHECK: u32 = 1024;

/// A thread block of machine `M` that reduces elements of type `T`. With `POSTER`, its last warp is the poster. With `SHIFTS` it copies between
/// places that are not aligned to packs by shifted packs all the same, in a kernel with registers to spare.
pub struct GpuBlock<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool = false> {
    machine: M,
    thread: u32,
    workers: u32,
    monitor: *const KernelMonitor,
    launch: u64,
    waiting_since: Cell<u64>,
    kind: CombineKind,
    flags: u32,
    pub(super) arg: OpArg,
    pub(super) tiles: Tiles,
    pub(super) pipe: Pipe,
    element: PhantomData<T>,
}

impl<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool> GpuBlock<M, T, POSTER, SHIFTS> {
    /// This thread's view of its block, for a kernel that only moves data.
    ///
    /// # Safety
    /// 1. `launch.monitor` is live for as long as the block.
    #[inline(always)]
    pub unsafe fn moving(machine: M, launch: &KernelLaunch) -> Self {
        GpuBlock {
            thread: machine.thread_index(),
            workers: machine.block_threads() - if POSTER { M::WARP_THREADS } else { 0 },
            machine,
            monitor: launch.monitor,
            launch: launch.number,
            waiting_since: Cell::new(0),
            kind: CombineKind::Sum,
            flags: 0,
            arg: OpArg::NONE,
            tiles: Tiles::default(),
            pipe: Pipe::default(),
            element: PhantomData,
        }
    }

    /// The same, for a kernel that reduces.
    ///
    /// # Safety
    /// 1. As [`Self::moving`].
    #[inline(always)]
    pub unsafe fn reducing(machine: M, launch: &KernelLaunch, coll: &KernelColl) -> Self {
        let kind = match coll.kind {
            0 => CombineKind::Sum,
            1 => CombineKind::Prod,
            2 => CombineKind::Max,
            _ => CombineKind::Min,
        };
        // SAFETY: obligation 1.
        unsafe { GpuBlock { kind, flags: coll.flags, arg: coll.arg, ..Self::moving(machine, launch) } }
    }

    /// What runs it.
    #[inline(always)]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    #[inline(always)]
    pub(super) fn variant(&self, how: How) -> bulk::Variant {
        let pre = how.pre && self.flags & KERNEL_PRE != 0;
        let post = how.post && self.flags & KERNEL_POST != 0;
        bulk::Variant { kind: self.kind, pre, post }
    }

    /// Now and then: whether the wait at this end may go on.
    #[inline(always)]
    fn check_at<E: End>(&self, end: &E, polls: u32) -> Result<(), Stop> {
        if !polls.is_multiple_of(POLLS_PER_CHECK) {
            return Ok(());
        }
        let since = if polls == POLLS_PER_CHECK { 0 } else { self.waiting_since.get() };
        // By value: a block whose address is taken lies in local memory, and every use of it is a load.
        match abort_check::<M, E>(self.monitor, self.launch, since, end) {
            0 => Err(Stop),
            since => {
                self.waiting_since.set(since);
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn share(&self) -> Share {
        Share { thread: self.thread, threads: self.workers }
    }
}

impl<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool> Block
    for GpuBlock<M, T, POSTER, SHIFTS>
{
    #[inline(always)]
    fn thread(&self) -> usize {
        self.thread as usize
    }

    #[inline(always)]
    fn threads(&self) -> usize {
        self.workers as usize
    }

    #[inline(always)]
    fn works(&self) -> bool {
        !POSTER || self.thread < self.workers
    }

    #[inline(always)]
    fn posts(&self) -> bool {
        self.thread == if POSTER { self.workers } else { 0 }
    }

    #[inline(always)]
    fn lead(&self, wait: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
        if !self.works() {
            return Ok(());
        }
        let stopped = self.thread == 0 && wait().is_err();
        if self.machine.any_of_workers::<POSTER>(self.workers, stopped) { Err(Stop) } else { Ok(()) }
    }

    #[inline(always)]
    fn close(&self, mine: Result<(), Stop>) -> Result<(), Stop> {
        if self.machine.any_of_all(mine.is_err()) { Err(Stop) } else { Ok(()) }
    }

    #[inline(always)]
    fn sync(&self) {
        self.machine.sync_all();
    }

    #[inline(always)]
    fn idle(&self, on: Wait, polls: u32) -> Result<(), Stop> {
        self.check_at(&on, polls)
    }

    #[inline(always)]
    fn idle_at(&self, end: &impl End, polls: u32) -> Result<(), Stop> {
        self.check_at(end, polls)
    }

    #[cold]
    fn refuse(&self, on: Wait, _expected: SlotHeader, _found: SlotHeader) -> Stop {
        // SAFETY: whoever made the block promised that the page lives as long.
        unsafe { &*self.monitor }.stopped.write(StopCause::Mismatch, on.peer, 0);
        Stop
    }

    #[inline(always)]
    fn has_pre(&self) -> bool {
        self.flags & KERNEL_PRE != 0
    }

    #[inline(always)]
    unsafe fn map_bulk(&self, dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize, how: How) {
        let variant = self.variant(how);
        if is_onto_itself(dst, dst2, src) && !variant.pre && !variant.post {
            return;
        }
        // SAFETY: obligations 1 and 2 are the loop's.
        unsafe { bulk::map::<M, T, SHIFTS>(self.share(), dst, dst2, src, len_bytes, variant, &self.arg) };
    }

    #[inline(always)]
    unsafe fn combine_bulk(
        &self,
        dst: *mut u8,
        dst2: *mut u8,
        a: *const u8,
        b: *const u8,
        len_bytes: usize,
        how: How,
    ) {
        let places = Places::of([a, b], [dst, dst2], len_bytes);
        // SAFETY: obligations 1 and 2 are the loop's.
        unsafe { bulk::combine::<M, T>(self.share(), places, self.variant(how), &self.arg) };
    }
}

impl<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool> AmongBlocks
    for GpuBlock<M, T, POSTER, SHIFTS>
{
    const INPUTS_MAX: u32 = reduced_max(T::DTYPE);

    #[inline(always)]
    unsafe fn copy_among(&self, among: Among, dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize) {
        if is_onto_itself(dst, dst2, src) {
            return;
        }
        // SAFETY: obligation 1 is the loop's.
        unsafe {
            let share = self.share().among(among, M::WARP_THREADS);
            bulk::copy_far::<M>(share, dst, dst2, src, len_bytes);
        }
    }

    #[inline(always)]
    unsafe fn reduce_among<const N: usize>(
        &self,
        among: Among,
        outputs: [*mut u8; N],
        inputs: [*const u8; N],
        len_bytes: usize,
        how: How,
    ) {
        let places = Places::of(inputs, outputs, len_bytes);
        // SAFETY: obligation 1 is the loop's.
        unsafe {
            let share = self.share().among(among, M::WARP_THREADS);
            bulk::reduce_inputs::<M, T, N>(share, places, self.variant(how), &self.arg);
        }
    }
}

impl<M: KernelMachine, T: Element, const POSTER: bool, const SHIFTS: bool> Words
    for GpuBlock<M, T, POSTER, SHIFTS>
{
    type Batch = [u64; 1];

    #[inline(always)]
    fn batch() -> [u64; 1] {
        [0]
    }

    #[inline(always)]
    fn pre(&self, words: &mut [u64]) {
        if self.has_pre() {
            for word in words {
                *word = arith::pre_one::<M, T>(*word, self.arg.scalar_bits);
            }
        }
    }

    #[inline(always)]
    fn post(&self, words: &mut [u64]) {
        if self.flags & KERNEL_POST != 0 {
            for word in words {
                *word = arith::post_one::<T>(*word, self.arg.divisor);
            }
        }
    }

    #[inline(always)]
    fn combine(&self, acc: &mut [u64], src: &[u64]) {
        for (acc, src) in acc.iter_mut().zip(src) {
            *acc = arith::combine_one::<M, T>(self.kind, *acc, *src);
        }
    }

    #[inline(always)]
    fn fold<F: Fold>(&self, fold: F) -> F::Output {
        match self.kind {
            CombineKind::Sum => fold.run(each_word(M::sum_word::<T>)),
            CombineKind::Prod => fold.run(each_word(M::prod_word::<T>)),
            CombineKind::Max => fold.run(each_word(reduce::combine_word::<T, Max>)),
            CombineKind::Min => fold.run(each_word(reduce::combine_word::<T, Min>)),
        }
    }
}

#[inline(always)]
fn each_word(combine: impl Fn(u64, u64) -> u64) -> impl Fn(&mut [u64], &[u64]) {
    #[inline(always)]
    move |acc, src| {
        for (acc, src) in acc.iter_mut().zip(src) {
            *acc = combine(*acc, *src);
        }
    }
}

/// Abort check. Returns the start of the wait, `since` being 0 for one that has just started; 0 if it must end. One thread of each warp says
/// where its block stands: which one is asked here, since of a line of LL128 only the thread with the flag waits.
#[cold]
#[inline(never)]
fn abort_check<M: KernelMachine, E: End>(
    monitor: *const KernelMonitor,
    launch: u64,
    since: u64,
    end: &E,
) -> u64 {
    // SAFETY: whoever made the block promised that the page lives as long.
    let monitor = unsafe { &*monitor };
    let Wait { peer, what } = end.wait();
    if monitor.abort.load_relaxed() != 0 {
        monitor.stopped.write(StopCause::Aborted, peer, 0);
        return 0;
    }
    let now = M::now_ns();
    let since = if since == 0 { now } else { since };
    let is_credit = what == Awaited::Credit;
    if let Some(stand) = M::speaks_for().and_then(|block| monitor.stands.get(block as usize)) {
        let wait = KernelWait { peer, is_credit, step: end.step().0 };
        stand.write(wait.to_word(), launch, since, now);
    }
    let timeout_ns = monitor.timeout_ns.load_relaxed();
    if timeout_ns == 0 || now - since <= timeout_ns {
        return since;
    }
    let cause = if is_credit { StopCause::NoCredit } else { StopCause::NoData };
    monitor.stopped.write(cause, peer, now - since);
    0
}
