//! A one-shot kernel of one short exchange: from the launch's arguments to the exchange, and the count of its step.
//!
//! Each thread loads what it needs itself, so nobody waits for another's loads. What no kernel writes, the tables of connections, is loaded
//! while the kernel before may still run; then cursors and the user's words, together.

use super::shared_conns::Extent;
use crate::gpu::threads::GpuBlock;
use crate::gpu::{Awaited, Block, KernelMachine, Stop, Wait, wait_for};
use crate::prims::{Place, Places, Short, clean, for_peers, rank_of, served, short};
use oxccl_shared::abi::{ConnEnd, ConnLayout, KernelLaunch, Protocol, Step};
use oxccl_shared::fifo::{ConnWords, ConsumerCursor, ProducerCursor, has_credit};
use oxccl_shared::proto::{self, ll};
use oxccl_shared::reduce::Element;
use oxccl_shared::sync::{Gpu, Word};

/// Runs `what` over the connections of a block.
///
/// # Safety
/// 1. `launch` is what the host launched with; `extent` lies within its lists, and has a connection each way to every peer of `what`, in rank
///    order, at most `PEERS`. Kernels are at their other ends (`KERNEL_DIRECT`).
/// 2. The buffers of `what` are valid for it.
#[inline(always)]
pub unsafe fn run<M: KernelMachine, T: Element, const POSTER: bool, const PEERS: usize>(
    block: &GpuBlock<M, T, POSTER>,
    launch: &KernelLaunch,
    extent: Extent,
    what: &Short,
) {
    // SAFETY: obligation 1.
    let ends = unsafe { Ends::<PEERS>::load(launch, extent, what.npeers) };
    block.machine().await_previous();
    block.machine().admit_next();
    let (peer, mut steps) = (served(block), [Step(0); 2]);
    let find = || {
        if peer < what.npeers {
            // SAFETY: obligation 1.
            steps = unsafe { steps_of(launch, extent.first + peer) };
        }
        // SAFETY: obligation 1.
        unsafe { ends.find(block, launch, extent, what) }
    };
    // SAFETY: obligations 1 and 2.
    let ran = unsafe { short::<_, PEERS>(block, what, find) };
    // A communicator whose kernel stopped is not used again.
    if ran.is_ok() && peer < what.npeers {
        // SAFETY: obligation 1: all threads have read the cursors, and this one alone writes them.
        unsafe { count(launch, extent.first + peer, what, steps) };
    }
}

/// The steps of a connection's ends.
///
/// # Safety
/// 1. As [`run`], for a connection of it.
#[inline(always)]
unsafe fn steps_of(launch: &KernelLaunch, at: usize) -> [Step; 2] {
    // SAFETY: obligation 1.
    unsafe {
        let (send, recv) = (launch.send_cursors.add(at), launch.recv_cursors.add(at));
        [Step(first(send.cast_const().cast())), Step(first(recv.cast_const().cast()))]
    }
}

/// Counts the step of both directions.
///
/// # Safety
/// 1. As [`run`], for a connection of it, at these steps; nobody else uses its cursors.
#[inline(always)]
unsafe fn count(launch: &KernelLaunch, at: usize, what: &Short, [to, from]: [Step; 2]) {
    if ll::must_clean(to) {
        // SAFETY: obligation 1.
        unsafe { clean_slot(launch.send.add(at), to, what.len_bytes) };
    }
    // SAFETY: obligation 1.
    unsafe {
        *launch.send_cursors.add(at) = ProducerCursor::after_exchange(to);
        *launch.recv_cursors.add(at) = ConsumerCursor::at(from.next());
    }
}

/// Overwrites old messages in the slot of `step` beyond one of `len_bytes`.
///
/// # Safety
/// 1. The end can be read, and its slot of the step is this thread's to write.
#[cold]
#[inline(never)]
unsafe fn clean_slot(end: *const ConnEnd, step: Step, len_bytes: usize) {
    // SAFETY: obligation 1.
    let end = unsafe { End::load(end) };
    // SAFETY: obligation 1.
    unsafe { clean(end.at(step), len_bytes, end.slot_bytes as usize) };
}

/// What a kernel needs of a connection's end that no kernel changes.
#[derive(Clone, Copy)]
struct End {
    slots: *mut u8,
    slot_bytes: u32,
}

impl End {
    const NONE: End = End { slots: core::ptr::null_mut(), slot_bytes: 0 };

    /// # Safety
    /// 1. `end` can be read.
    #[inline(always)]
    unsafe fn load(end: *const ConnEnd) -> End {
        // SAFETY: obligation 1.
        let (base, slot_bytes) = unsafe {
            ((&raw const (*end).consumer_side).read(), (&raw const (*end).layout.ll_slot_bytes).read())
        };
        let layout = ConnLayout { ll_slot_bytes: slot_bytes, ll128_slot_bytes: 0, simple_slot_bytes: 0 };
        let offset = proto::slot_offset(Protocol::LL, &layout, 0);
        End { slots: base.cast::<u8>().cast_mut().wrapping_add(offset), slot_bytes }
    }

    #[inline(always)]
    fn at(&self, step: Step) -> Place {
        Place::at(self.slots.wrapping_add(step.slot() * self.slot_bytes as usize), step)
    }
}

struct Ends<const PEERS: usize> {
    to: [End; PEERS],
    from: [End; PEERS],
}

impl<const PEERS: usize> Ends<PEERS> {
    /// # Safety
    /// 1. As [`run`].
    #[inline(always)]
    unsafe fn load(launch: &KernelLaunch, extent: Extent, npeers: usize) -> Self {
        let mut ends = Ends { to: [End::NONE; PEERS], from: [End::NONE; PEERS] };
        for_peers!(npeers, i => {
            // SAFETY: obligation 1.
            ends.to[i] = unsafe { End::load(launch.send.add(extent.first + i)) };
            // SAFETY: obligation 1.
            ends.from[i] = unsafe { End::load(launch.recv.add(extent.first + i)) };
        });
        ends
    }

    /// The slots of the current steps, once those to write are empty.
    ///
    /// # Safety
    /// 1. As [`run`].
    #[inline(always)]
    unsafe fn find<B: Block>(
        &self,
        block: &B,
        launch: &KernelLaunch,
        extent: Extent,
        what: &Short,
    ) -> Result<Places<PEERS>, Stop> {
        let npeers = what.npeers;
        let mut cursors = [[0; 3]; PEERS];
        // All loads before the first use of one.
        for_peers!(npeers, i => {
            let at = extent.first + i;
            // SAFETY: obligation 1.
            cursors[i] = unsafe {
                let (send, recv) = (launch.send_cursors.add(at), launch.recv_cursors.add(at));
                let [step, head_seen] = numbers(send.cast_const().cast());
                [step, head_seen, first(recv.cast_const().cast())]
            };
        });
        let mut has_all = true;
        let mut places = Places { to: [Place::NONE; PEERS], from: [Place::NONE; PEERS] };
        for_peers!(npeers, i => {
            let [to, head_seen, from] = cursors[i];
            places.to[i] = self.to[i].at(Step(to));
            places.from[i] = self.from[i].at(Step(from));
            has_all &= has_credit(to, head_seen, Protocol::LL.slots());
        });
        if !has_all {
            // SAFETY: obligation 1.
            unsafe { await_credits(block, launch, extent, what)? };
        }
        Ok(places)
    }
}

/// The numbers of a cursor. The kernel before may have written them after this one started: not through a cache that this one filled.
///
/// # Safety
/// 1. `cursor` is a [`ProducerCursor`] or a [`ConsumerCursor`] that nobody writes now.
#[inline(always)]
unsafe fn numbers(cursor: *const [Word<u64, Gpu>; 2]) -> [u64; 2] {
    const { assert!(size_of::<ProducerCursor>() == 16 && size_of::<ConsumerCursor>() == 16) };
    // SAFETY: obligation 1: two words of 8 bytes each.
    let [step, seen] = unsafe { &*cursor };
    [step.load_relaxed(), seen.load_relaxed()]
}

/// The first of them: the step.
///
/// # Safety
/// 1. As [`numbers`].
#[inline(always)]
unsafe fn first(cursor: *const Word<u64, Gpu>) -> u64 {
    // SAFETY: obligation 1.
    unsafe { &*cursor }.load_relaxed()
}

/// Waits until all slots to write are empty: after a run of messages that went one way only. Part of its caller, once for all peers: a block
/// whose address is taken lies in local memory.
///
/// # Safety
/// 1. As [`run`].
#[inline(always)]
unsafe fn await_credits<B: Block>(
    block: &B,
    launch: &KernelLaunch,
    extent: Extent,
    what: &Short,
) -> Result<(), Stop> {
    for i in 0..what.npeers {
        // SAFETY: obligation 1.
        let (end, [step, head_seen]) = unsafe {
            let cursor = launch.send_cursors.add(extent.first + i);
            (&*launch.send.add(extent.first + i), numbers(cursor.cast_const().cast()))
        };
        // SAFETY: obligation 1: connections are live.
        let words =
            unsafe { ConnWords { producer_side: &*end.producer_side, consumer_side: &*end.consumer_side } };
        // Of a peer that only exchanges have met, `head` says nothing, and never will.
        let mut cursor = ProducerCursor::seen(Step(step), head_seen);
        let on = Wait { peer: rank_of(what.rank, i), what: Awaited::Credit };
        wait_for(block, &on, || cursor.poll_credit(words, Protocol::LL.slots()).then_some(()))?;
    }
    Ok(())
}
