//! The two ends of connections as kernels hold them.
//!
//! All threads of a block share its ends, and each part of an end has one writer among them ([`crate::gpu::Block`] says who
//! is who): the first worker counts what has been moved and remembers what it saw of the peer, the poster counts what the
//! peer has been told. The block's barriers separate a write from the others' reads, so plain cells do.

use core::cell::Cell;
use oxccl_shared::abi::{ConnControl, ConnEnd, ConnLayout, Protocol, Rank, SlotHeader, Step};
use oxccl_shared::fifo::{ConnWords, ConsumerCursor, ProducerCursor};
use oxccl_shared::proto;

/// The producer's end of a connection.
pub struct SendConn {
    end: ConnEnd,
    /// The first worker's.
    moved: Cell<ProducerCursor>,
    /// The poster's: what comes next.
    told: Cell<Step>,
    /// Whether a proxy consumes it and an operation ends only when that has taken everything.
    pub is_streamed: bool,
}

/// The consumer's end of a connection.
pub struct RecvConn {
    end: ConnEnd,
    /// The first worker's.
    moved: Cell<ConsumerCursor>,
    /// The poster's: what comes next.
    told: Cell<Step>,
}

// SAFETY: the memory under an end is shared by design: all concurrent access goes through `Word`s or is ordered by them.
unsafe impl Send for SendConn {}
// SAFETY: as for `SendConn`.
unsafe impl Send for RecvConn {}

/// Every connection of one channel of one rank. Algorithms name them by index.
#[derive(Clone, Copy)]
pub struct Conns<'a> {
    /// To consumers.
    pub send: &'a [SendConn],
    /// From producers.
    pub recv: &'a [RecvConn],
}

/// Makes the words of an end reachable.
#[inline(always)]
fn words(end: &ConnEnd) -> ConnWords<'_> {
    // SAFETY: whoever made the `SendConn` or `RecvConn` promised that both blocks are live.
    let (producer_side, consumer_side) = unsafe { (&*end.producer_side, &*end.consumer_side) };
    ConnWords { producer_side, consumer_side }
}

#[inline(always)]
fn slot(end: &ConnEnd, protocol: Protocol, step: Step) -> *mut u8 {
    let at = |slot| proto::slot_offset(protocol, &end.layout, slot);
    let (base, offset) = match proto::is_flagged(protocol) {
        true => (end.consumer_side.cast(), at(step.slot())),
        false => (end.counted, at(step.slot()) - at(0)),
    };
    base.cast_mut().wrapping_add(offset)
}

/// An end, word by word, so that a GPU asks for all words before it waits for the first: a copy as a whole becomes loads and stores in
/// turn, or a detour through the thread's own memory.
///
/// # Safety
/// 1. `end` can be read.
#[inline(always)]
unsafe fn load(end: *const ConnEnd) -> ConnEnd {
    // SAFETY: obligation 1.
    unsafe {
        let layout = &raw const (*end).layout;
        ConnEnd {
            producer_side: (&raw const (*end).producer_side).read(),
            consumer_side: (&raw const (*end).consumer_side).read(),
            layout: ConnLayout {
                ll_slot_bytes: (&raw const (*layout).ll_slot_bytes).read(),
                ll128_slot_bytes: (&raw const (*layout).ll128_slot_bytes).read(),
                simple_slot_bytes: (&raw const (*layout).simple_slot_bytes).read(),
            },
            peer: Rank((&raw const (*end).peer.0).read()),
            counted: (&raw const (*end).counted).read(),
        }
    }
}

impl SendConn {
    /// The producer's end of the connection whose whole block is at `base`.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and points to `layout.total_bytes()` bytes that started zeroed and outlive the end.
    /// 2. Nobody else is, or will be, this connection's producer.
    pub unsafe fn new(peer: Rank, base: *mut u8, layout: ConnLayout) -> Self {
        let end = ConnEnd::in_one(base.cast::<ConnControl>(), layout, peer);
        // SAFETY: obligations 1 and 2.
        unsafe { SendConn::resume(end, ProducerCursor::default()) }
    }

    /// The producer's end as it was left at `cursor`.
    ///
    /// # Safety
    /// 1. Both blocks of `end` are live, 128-byte aligned and as large as its layout says, and outlive the connection; so do its
    ///    counted slots, wherever they lie.
    /// 2. Nobody else is this connection's producer, but the other threads of the block.
    #[inline(always)]
    pub unsafe fn resume(end: ConnEnd, cursor: ProducerCursor) -> Self {
        SendConn { end, moved: Cell::new(cursor), told: Cell::new(cursor.step()), is_streamed: false }
    }

    /// As [`Self::resume`], where it is to lie: an end that a kernel's thread hands on as a value goes through the thread's own memory.
    ///
    /// # Safety
    /// 1. As [`Self::resume`], for the end at `end`.
    /// 2. `place` can be written, and nobody else touches it.
    #[inline(always)]
    pub unsafe fn resume_at(place: *mut SendConn, end: *const ConnEnd, cursor: ProducerCursor) {
        // SAFETY: obligations 1 and 2.
        unsafe {
            (&raw mut (*place).end).write(load(end));
            (&raw mut (*place).moved).write(Cell::new(cursor));
            (&raw mut (*place).told).write(Cell::new(cursor.step()));
            (&raw mut (*place).is_streamed).write(false);
        }
    }

    /// Who consumes.
    #[inline(always)]
    pub fn peer(&self) -> Rank {
        self.end.peer
    }

    /// Slot sizes.
    #[inline(always)]
    pub fn layout(&self) -> &ConnLayout {
        &self.end.layout
    }

    /// The step that will be produced next.
    #[inline(always)]
    pub fn step(&self) -> Step {
        self.moved.get().step()
    }

    /// How far it is.
    #[inline(always)]
    pub fn cursor(&self) -> ProducerCursor {
        self.moved.get()
    }

    /// Whether the slot of the current step is empty. Only the first worker `remembers` what it saw.
    #[inline(always)]
    pub fn poll_credit(&self, remembers: bool) -> bool {
        let mut cursor = self.moved.get();
        let is_empty = cursor.poll_credit(words(&self.end));
        if remembers {
            self.moved.set(cursor);
        }
        is_empty
    }

    /// The first worker: goes to the next step.
    #[inline(always)]
    pub fn advance(&self) {
        let mut cursor = self.moved.get();
        cursor.advance();
        self.moved.set(cursor);
    }

    /// The first worker: goes to the next step after a slot whose own lines say that it is full (LL, LL128). Nobody is told,
    /// so the poster has nothing to say of this step either: an operation that publishes may come next.
    #[inline(always)]
    pub fn advance_untold(&self) {
        let mut cursor = self.moved.get();
        cursor.advance();
        self.moved.set(cursor);
        self.told.set(cursor.step());
    }

    /// The first worker: learns of credits before they are needed, so that others who look find them remembered.
    #[inline(always)]
    pub fn poll_credit_ahead(&self) {
        let mut cursor = self.moved.get();
        cursor.poll_credit_ahead(words(&self.end));
        self.moved.set(cursor);
    }

    /// The poster: tells the consumer that the next slot it has not heard of is full (Simple).
    #[inline(always)]
    pub fn publish(&self, header: SlotHeader) {
        let mut cursor = ProducerCursor::at(self.told.get());
        cursor.publish(words(&self.end), header);
        self.told.set(cursor.step());
    }

    /// Whether the consumer has taken everything.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.moved.get().is_drained(words(&self.end))
    }

    /// The slot of the current step.
    #[inline(always)]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(&self.end, protocol, self.step())
    }
}

impl RecvConn {
    /// The consumer's end of the connection whose whole block is at `base`.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and points to `layout.total_bytes()` bytes that started zeroed and outlive the end.
    /// 2. Nobody else is, or will be, this connection's consumer.
    pub unsafe fn new(peer: Rank, base: *mut u8, layout: ConnLayout) -> Self {
        let end = ConnEnd::in_one(base.cast::<ConnControl>(), layout, peer);
        // SAFETY: obligations 1 and 2.
        unsafe { RecvConn::resume(end, ConsumerCursor::default()) }
    }

    /// The consumer's end as it was left at `cursor`.
    ///
    /// # Safety
    /// 1. Both blocks of `end` are live, 128-byte aligned and as large as its layout says, and outlive the connection; so do its
    ///    counted slots, wherever they lie.
    /// 2. Nobody else is this connection's consumer, but the other threads of the block.
    #[inline(always)]
    pub unsafe fn resume(end: ConnEnd, cursor: ConsumerCursor) -> Self {
        RecvConn { end, moved: Cell::new(cursor), told: Cell::new(cursor.step()) }
    }

    /// As [`Self::resume`], where it is to lie: an end that a kernel's thread hands on as a value goes through the thread's own memory.
    ///
    /// # Safety
    /// 1. As [`Self::resume`], for the end at `end`.
    /// 2. `place` can be written, and nobody else touches it.
    #[inline(always)]
    pub unsafe fn resume_at(place: *mut RecvConn, end: *const ConnEnd, cursor: ConsumerCursor) {
        // SAFETY: obligations 1 and 2.
        unsafe {
            (&raw mut (*place).end).write(load(end));
            (&raw mut (*place).moved).write(Cell::new(cursor));
            (&raw mut (*place).told).write(Cell::new(cursor.step()));
        }
    }

    /// Who produces.
    #[inline(always)]
    pub fn peer(&self) -> Rank {
        self.end.peer
    }

    /// Slot sizes.
    #[inline(always)]
    pub fn layout(&self) -> &ConnLayout {
        &self.end.layout
    }

    /// The step that will be consumed next.
    #[inline(always)]
    pub fn step(&self) -> Step {
        self.moved.get().step()
    }

    /// How far it is.
    #[inline(always)]
    pub fn cursor(&self) -> ConsumerCursor {
        self.moved.get()
    }

    /// The first worker: the header of the next slot, if it has been published (Simple).
    #[inline(always)]
    pub fn poll(&self) -> Option<SlotHeader> {
        let mut cursor = self.moved.get();
        let header = cursor.poll(words(&self.end));
        self.moved.set(cursor);
        header
    }

    /// The first worker: goes to the next step.
    #[inline(always)]
    pub fn advance(&self) {
        let mut cursor = self.moved.get();
        cursor.advance();
        self.moved.set(cursor);
    }

    /// The poster: gives back the oldest slot that it has not given back yet.
    #[inline(always)]
    pub fn release(&self) {
        let mut cursor = ConsumerCursor::at(self.told.get());
        cursor.release(words(&self.end));
        self.told.set(cursor.step());
    }

    /// As [`Self::release`], for a slot whose every word carries its own flag (LL).
    #[inline(always)]
    pub fn release_flagged(&self) {
        let mut cursor = ConsumerCursor::at(self.told.get());
        cursor.release_flagged(words(&self.end));
        self.told.set(cursor.step());
    }

    /// The slot of the current step.
    #[inline(always)]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(&self.end, protocol, self.step())
    }
}
