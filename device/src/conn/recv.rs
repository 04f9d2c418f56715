//! The consumer's end.

use super::end::{Counter, Spread, load, slot, words};
#[cfg(feature = "cpu")]
use super::end::{INVITED, offer};
use crate::gpu::{Awaited, End, Wait};
#[cfg(feature = "cpu")]
use crate::remote::RemoteMemory;
#[cfg(feature = "cpu")]
use crate::traffic::Traffic;
use core::cell::Cell;
use oxccl_shared::abi::{ConnControl, ConnEnd, ConnLayout, Protocol, Rank, SlotHeader, Step};
#[cfg(feature = "cpu")]
use oxccl_shared::abi::{Offer, SlotLine};
use oxccl_shared::fifo::{ConsumerCursor, NextLine};

/// The consumer's end of a connection.
pub struct RecvConn {
    pub(super) end: ConnEnd,
    /// Next step to read. Writer: the first worker.
    moved: Cell<ConsumerCursor>,
    /// Next step to release. Writer: the poster.
    released: Cell<Step>,
    spread: Spread,
    reads: Reads,
    counter: Counter,
    #[cfg(feature = "cpu")]
    pub(super) pair: super::pair::Pair,
}

/// The producer's memory, from which messages of this length on are read: the same as the producer offers.
#[derive(Default)]
struct Reads {
    #[cfg(feature = "cpu")]
    memory: Option<(std::sync::Arc<dyn RemoteMemory>, usize)>,
    /// Whether the next message is read from its end to its beginning.
    #[cfg(feature = "cpu")]
    backwards: Cell<bool>,
}

// SAFETY: the memory under an end is shared by design: all concurrent access goes through `Word`s or is ordered by them.
unsafe impl Send for RecvConn {}

/// A consumer waits for a full one.
impl End for RecvConn {
    #[inline(always)]
    fn wait(&self) -> Wait {
        Wait { peer: self.peer(), what: Awaited::Data }
    }

    #[inline(always)]
    fn step(&self) -> Step {
        RecvConn::step(self)
    }
}

impl RecvConn {
    /// The consumer's end of a connection whose memory is one block at `base`.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and points to `layout.total_bytes()` bytes that started zeroed and outlive the
    ///    end.
    /// 2. This connection has no other consumer, now or later.
    pub unsafe fn new(peer: Rank, base: *mut u8, layout: ConnLayout) -> Self {
        let end = ConnEnd::in_one(base.cast::<ConnControl>(), layout, peer);
        // SAFETY: obligations 1 and 2.
        unsafe { RecvConn::resume(end, ConsumerCursor::default()) }
    }

    /// The consumer's end, continued at `cursor`.
    ///
    /// # Safety
    /// 1. Both blocks of `end` are live, 128-byte aligned and as large as its layout says, and outlive the
    ///    connection; so do its Simple slots, wherever they are.
    /// 2. This connection has no other consumer, except the other threads of the block.
    #[inline(always)]
    pub unsafe fn resume(end: ConnEnd, cursor: ConsumerCursor) -> Self {
        let (moved, released) = (Cell::new(cursor), Cell::new(cursor.step()));
        RecvConn {
            end,
            moved,
            released,
            spread: Spread::default(),
            reads: Reads::default(),
            counter: Counter::default(),
            #[cfg(feature = "cpu")]
            pair: super::pair::Pair::default(),
        }
    }

    /// As [`Self::resume`], but constructs the end at `place`: returning it as a value goes through the thread's
    /// local memory.
    ///
    /// # Safety
    /// 1. As [`Self::resume`], for the end at `end`.
    /// 2. `place` can be written, and nobody else accesses it.
    #[inline(always)]
    pub unsafe fn resume_at(place: *mut RecvConn, end: *const ConnEnd, cursor: ConsumerCursor) {
        // SAFETY: obligations 1 and 2.
        unsafe {
            (&raw mut (*place).end).write(load(end));
            (&raw mut (*place).moved).write(Cell::new(cursor));
            (&raw mut (*place).released).write(Cell::new(cursor.step()));
            (&raw mut (*place).spread).write(Spread::default());
            (&raw mut (*place).reads).write(Reads::default());
            (&raw mut (*place).counter).write(Counter::default());
            #[cfg(feature = "cpu")]
            (&raw mut (*place).pair).write(super::pair::Pair::default());
        }
    }

    /// The producer.
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

    /// The consumer's cursor.
    #[inline(always)]
    pub fn cursor(&self) -> ConsumerCursor {
        self.moved.get()
    }

    /// First worker: the header of the next slot, if it has been published (Simple).
    #[inline(always)]
    pub fn poll(&self) -> Option<SlotHeader> {
        let mut cursor = self.moved.get();
        if let Some(line) = self.next_line() {
            return line.poll();
        }
        let header = cursor.poll(words(&self.end));
        self.moved.set(cursor);
        header
    }

    /// What [`Self::poll`] polls, where slots are published in their lines.
    #[inline(always)]
    pub(crate) fn next_line(&self) -> Option<NextLine<'_>> {
        self.spread.is_on().then(|| self.moved.get().next_line(words(&self.end)))
    }

    /// As [`SendConn::is_spread`](super::SendConn::is_spread).
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub fn is_spread(&self) -> bool {
        self.spread.is_on()
    }

    /// First worker: advances to the next step.
    #[inline(always)]
    pub fn advance(&self) {
        let mut cursor = self.moved.get();
        cursor.advance();
        self.moved.set(cursor);
    }

    /// Poster: releases the oldest unreleased slot.
    #[inline(always)]
    pub fn release(&self) {
        let mut cursor = ConsumerCursor::at(self.released.get());
        #[cfg(feature = "cpu")]
        self.pair.take(&self.end, cursor);
        cursor.release(words(&self.end));
        self.released.set(cursor.step());
    }

    /// As [`Self::release`], for a slot whose every word carries its own flag (LL).
    #[inline(always)]
    pub fn release_flagged(&self) {
        let mut cursor = ConsumerCursor::at(self.released.get());
        cursor.release_flagged(words(&self.end));
        self.released.set(cursor.step());
    }

    /// First worker: advances past a slot of an exchange with the producer, who learns from our next message that it is free.
    #[inline(always)]
    pub(crate) fn advance_unreleased(&self) {
        self.advance();
        self.released.set(self.moved.get().step());
    }

    /// First worker: counts a slot of so many bytes that has been used.
    #[inline(always)]
    pub(crate) fn count(&self, _len_bytes: usize) {
        #[cfg(feature = "cpu")]
        if let Some(traffic) = &self.counter.traffic {
            traffic.received(_len_bytes as u32);
        }
    }

    /// The only thread of a block: releases the slot of the current step, of so many bytes, and counts it.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub(crate) fn release_next(&self, len_bytes: u32) {
        let mut cursor = self.moved.get();
        cursor.release(words(&self.end));
        self.moved.set(cursor);
        self.released.set(cursor.step());
        self.count(len_bytes as usize);
    }

    /// As [`Self::release_next`], of a message where [`Self::message`] says.
    #[cfg(feature = "cpu")]
    pub(crate) fn release_next_message(&self, len_bytes: u32) {
        self.release();
        self.advance();
        self.count(len_bytes as usize);
    }

    /// Asks for the lines of another message like this one, which has probably been published.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub(crate) fn ask_for_next(&self, len_bytes: usize) {
        let line = self.short_message(0).cast_const();
        crate::gpu::cpu::reduce::ask_to_read(line, size_of::<SlotLine>());
        if len_bytes > SlotLine::PAYLOAD_BYTES {
            crate::gpu::cpu::reduce::ask_to_read(self.short_message(len_bytes), len_bytes);
        }
    }

    /// From now on counts what goes over it.
    #[cfg(feature = "cpu")]
    pub fn count_in(&mut self, traffic: std::sync::Arc<Traffic>) {
        self.counter.traffic = Some(traffic);
    }

    /// Whether that is set.
    #[cfg(feature = "cpu")]
    pub fn is_counted(&self) -> bool {
        self.counter.traffic.is_some()
    }

    /// Answers the question that comes in the slot of the current step, or has: where the message goes, or 0.
    #[inline(always)]
    pub(crate) fn give_answer(&self, tag: u32, address: u64) {
        words(&self.end).producer_side.answer.give(self.step(), tag, address);
    }

    /// Takes back an answer that was of use, or that nobody asked for.
    #[inline(always)]
    pub(crate) fn take_answer_back(&self) {
        words(&self.end).producer_side.answer.take_back();
    }

    /// The slot of the current step.
    #[inline(always)]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(&self.end, protocol, self.step())
    }

    /// Where a message of so many bytes of Simple lies: in the slot of the current step, in a buffer of the pair's, or in the producer's outbox, where
    /// others read it too. Except in an outbox, it is this rank's until it is released.
    #[inline(always)]
    pub fn message(&self, len_bytes: usize) -> *mut u8 {
        #[cfg(feature = "cpu")]
        if let Some(buffer) = self.pair.find(&self.end, self.moved.get()) {
            return buffer;
        }
        let offset = self.spread.offset(&self.end, self.step(), len_bytes);
        self.slot(Protocol::Simple).wrapping_add(offset)
    }

    /// The slot of the current step, if its message lies in the producer's outbox: it is empty then, and ours until it is released.
    #[cfg(feature = "cpu")]
    #[inline]
    pub(crate) fn slot_beside_outbox(&self) -> Option<*mut u8> {
        let is_in_outbox = self.pair.is_in_outbox(&self.end, self.moved.get());
        is_in_outbox.then(|| self.slot(Protocol::Simple))
    }

    /// How many of the bytes that are left of a message have come in the current step: as the producer's [`part`](super::SendConn::part).
    #[cfg(feature = "cpu")]
    #[inline]
    pub(crate) fn part(&self, left: usize) -> usize {
        let in_buffer = self.pair.part_found(&self.end, self.moved.get(), left);
        in_buffer.unwrap_or(left.min(self.layout().simple_slot_bytes as usize))
    }

    /// Where a message of so many bytes of Simple lies, fewer than [`PING_PONG_MIN_BYTES`](super::PING_PONG_MIN_BYTES): in the line of the current
    /// step's slot, or at the slot's beginning.
    #[inline(always)]
    pub fn short_message(&self, len_bytes: usize) -> *mut u8 {
        let in_line = self.spread.in_line(&self.end, self.step(), len_bytes);
        in_line.unwrap_or_else(|| self.slot(Protocol::Simple))
    }

    /// Publishes slots in their lines, and spreads short messages over their slots: both ends of the connection, before its first message,
    /// and nobody between them who reads slots.
    #[cfg(feature = "cpu")]
    pub fn spread(&self) {
        self.spread.is_on.set(true);
    }

    /// From now on messages of Simple of so many bytes and more are read from the producer's memory. Called on a new connection, before
    /// the producer calls [`SendConn::offer_from`](super::SendConn::offer_from), which finds the invitation in the first slot.
    #[cfg(feature = "cpu")]
    pub fn read_from(&mut self, memory: std::sync::Arc<dyn RemoteMemory>, from_bytes: usize) {
        // RELEASE pairs with ACQUIRE in `SendConn::offer_from`.
        self.offer().reply.store_release(INVITED);
        self.reads.memory = Some((memory, from_bytes));
    }

    /// The producer's memory, if a message of so many bytes is read from there.
    #[cfg(feature = "cpu")]
    #[inline]
    pub(crate) fn reads(&self, len_bytes: usize) -> Option<&dyn RemoteMemory> {
        self.reads.memory.as_ref().filter(|(_, from)| len_bytes >= *from).map(|(memory, _)| &**memory)
    }

    /// Whether the message that is being read, or the next one, is read from its end to its beginning.
    #[cfg(feature = "cpu")]
    pub(crate) fn reads_backwards(&self) -> bool {
        self.reads.backwards.get()
    }

    /// The next message is read the other way.
    #[cfg(feature = "cpu")]
    pub(crate) fn turn(&self) {
        self.reads.backwards.set(!self.reads.backwards.get());
    }

    /// The Simple slot so many steps behind the current one.
    #[cfg(feature = "cpu")]
    pub(crate) fn slot_after(&self, steps: u64) -> *mut u8 {
        slot(&self.end, Protocol::Simple, Step(self.step().0 + steps))
    }

    /// The offer in the slot of the current step.
    #[cfg(feature = "cpu")]
    pub(crate) fn offer(&self) -> &Offer {
        offer(&self.end, self.step())
    }
}
