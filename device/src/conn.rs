//! The two ends of connections as kernels hold them.
//!
//! All threads of a block share its ends. Each part of an end has one writer among them ([`crate::gpu::Block`] names
//! the roles): the first worker counts the steps moved and caches what it has read of the peer's words, the poster
//! counts the steps published. The block's barriers separate a write from the others' reads, so plain cells suffice.

use crate::distance::{Distance, SlotStores};
use crate::gpu::{Awaited, End, Wait};
#[cfg(feature = "cpu")]
use crate::remote::RemoteMemory;
#[cfg(feature = "cpu")]
use crate::traffic::Traffic;
use core::cell::Cell;
use core::mem::offset_of;
#[cfg(feature = "cpu")]
use oxccl_shared::abi::Offer;
use oxccl_shared::abi::{ConnControl, ConnEnd, ConnLayout, Protocol, Rank, SlotHeader, SlotLine, Step};
use oxccl_shared::fifo::{ConnWords, ConsumerCursor, NextLine, ProducerCursor};
use oxccl_shared::proto;

/// The producer's end of a connection.
pub struct SendConn {
    end: ConnEnd,
    /// Next step to fill. Writer: the first worker.
    moved: Cell<ProducerCursor>,
    /// Next step to publish. Writer: the poster.
    published: Cell<Step>,
    /// Whether a proxy consumes it, so that an operation ends only once the proxy has taken everything.
    pub is_streamed: bool,
    /// Where the consumer is.
    distance: Distance,
    spread: Spread,
    offers: Offers,
    counter: Counter,
}

/// The consumer's end of a connection.
pub struct RecvConn {
    end: ConnEnd,
    /// Next step to read. Writer: the first worker.
    moved: Cell<ConsumerCursor>,
    /// Next step to release. Writer: the poster.
    released: Cell<Step>,
    spread: Spread,
    reads: Reads,
    counter: Counter,
}

/// Where a rank on a CPU counts what goes over the connection; GPUs count nothing.
#[derive(Default)]
struct Counter {
    #[cfg(feature = "cpu")]
    traffic: Option<std::sync::Arc<Traffic>>,
}

/// Whether both ends are processors, and nobody between them reads slots: then each slot of Simple is published in its line, which has a
/// short message too ([`SlotLine`]), and messages shorter than their slot are spread over it ([`proto::simple::spread_offset`]). Both ends
/// say the same.
#[derive(Default)]
struct Spread {
    #[cfg(feature = "cpu")]
    is_on: Cell<bool>,
}

impl Spread {
    /// From the beginning of the slot of `step` to that of a message.
    #[inline(always)]
    fn offset(&self, _end: &ConnEnd, _step: Step, _len_bytes: usize) -> usize {
        #[cfg(feature = "cpu")]
        if self.is_on.get() {
            return proto::simple::spread_offset(_end.layout.simple_slot_bytes as usize, _step, _len_bytes);
        }
        0
    }

    #[inline(always)]
    fn is_on(&self) -> bool {
        #[cfg(feature = "cpu")]
        return self.is_on.get();
        #[cfg(not(feature = "cpu"))]
        false
    }

    /// Where a message of so many bytes lies, if it is in the line of its slot.
    #[inline(always)]
    fn in_line(&self, end: &ConnEnd, step: Step, len_bytes: usize) -> Option<*mut u8> {
        let is_short = self.is_on() && len_bytes <= SlotLine::PAYLOAD_BYTES;
        is_short.then(|| {
            let offset = offset_of!(ConnControl, lines)
                + step.slot() * size_of::<SlotLine>()
                + offset_of!(SlotLine, payload);
            end.consumer_side.cast_mut().cast::<u8>().wrapping_add(offset)
        })
    }
}

/// From which length on a producer offers its memory instead of filling slots.
#[derive(Default)]
struct Offers {
    #[cfg(feature = "cpu")]
    from_bytes: Option<usize>,
}

/// What a consumer says in the first slot of a new connection, before its producer has seen it: it reads the producer's memory.
#[cfg(feature = "cpu")]
const INVITED: u64 = 0x6f78_6363_6c63_6d61;

/// The producer's memory, from which messages of this length on are read: the same as the producer's [`Offers`].
#[derive(Default)]
struct Reads {
    #[cfg(feature = "cpu")]
    memory: Option<(std::sync::Arc<dyn RemoteMemory>, usize)>,
}

// SAFETY: the memory under an end is shared by design: all concurrent access goes through `Word`s or is ordered by them.
unsafe impl Send for SendConn {}
// SAFETY: as for `SendConn`.
unsafe impl Send for RecvConn {}

/// All connections of one channel of one rank. Algorithms refer to them by index.
#[derive(Clone, Copy)]
pub struct Conns<'a> {
    /// Connections to consumers.
    pub send: &'a [SendConn],
    /// Connections from producers.
    pub recv: &'a [RecvConn],
}

/// References to the words of an end.
#[inline(always)]
fn words(end: &ConnEnd) -> ConnWords<'_> {
    // SAFETY: the creator of the `SendConn` or `RecvConn` promised that both blocks are live.
    let (producer_side, consumer_side) = unsafe { (&*end.producer_side, &*end.consumer_side) };
    ConnWords { producer_side, consumer_side }
}

#[inline(always)]
fn slot(end: &ConnEnd, protocol: Protocol, step: Step) -> *mut u8 {
    let at = |slot| proto::slot_offset(protocol, &end.layout, slot);
    let (base, offset) = match protocol.is_flagged() {
        true => (end.consumer_side.cast(), at(step.slot_of(protocol))),
        false => (end.counted, at(step.slot_of(protocol)) - at(0)),
    };
    base.cast_mut().wrapping_add(offset)
}

/// The offer that a Simple slot may hold.
#[cfg(feature = "cpu")]
fn offer(end: &ConnEnd, step: Step) -> &Offer {
    // SAFETY: the creator of the end promised that its slots are live; each is 128-byte aligned and larger than an offer, whose
    // words are valid whatever they hold.
    unsafe { &*slot(end, Protocol::Simple, step).cast::<Offer>() }
}

/// Loads an end word by word, so that a GPU issues all loads before it waits for the first: a copy as a whole becomes
/// loads and stores in turn, or a detour through local memory.
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

/// A producer waits for an empty slot.
impl End for SendConn {
    #[inline(always)]
    fn wait(&self) -> Wait {
        Wait { peer: self.peer(), what: Awaited::Credit }
    }

    #[inline(always)]
    fn step(&self) -> Step {
        SendConn::step(self)
    }
}

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

impl SendConn {
    /// The producer's end of a connection whose memory is one block at `base`.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and points to `layout.total_bytes()` bytes that started zeroed and outlive the
    ///    end.
    /// 2. This connection has no other producer, now or later.
    pub unsafe fn new(peer: Rank, base: *mut u8, layout: ConnLayout) -> Self {
        let end = ConnEnd::in_one(base.cast::<ConnControl>(), layout, peer);
        // SAFETY: obligations 1 and 2.
        unsafe { SendConn::resume(end, ProducerCursor::default()) }
    }

    /// The producer's end, continued at `cursor`.
    ///
    /// # Safety
    /// 1. Both blocks of `end` are live, 128-byte aligned and as large as its layout says, and outlive the
    ///    connection; so do its Simple slots, wherever they are.
    /// 2. This connection has no other producer, except the other threads of the block.
    #[inline(always)]
    pub unsafe fn resume(end: ConnEnd, cursor: ProducerCursor) -> Self {
        let (moved, published) = (Cell::new(cursor), Cell::new(cursor.step()));
        let (distance, spread) = (Distance::default(), Spread::default());
        SendConn {
            end,
            moved,
            published,
            is_streamed: false,
            distance,
            spread,
            offers: Offers::default(),
            counter: Counter::default(),
        }
    }

    /// As [`Self::resume`], but constructs the end at `place`: returning it as a value goes through the thread's
    /// local memory.
    ///
    /// # Safety
    /// 1. As [`Self::resume`], for the end at `end`.
    /// 2. `place` can be written, and nobody else accesses it.
    #[inline(always)]
    pub unsafe fn resume_at(place: *mut SendConn, end: *const ConnEnd, cursor: ProducerCursor) {
        // SAFETY: obligations 1 and 2.
        unsafe {
            (&raw mut (*place).end).write(load(end));
            (&raw mut (*place).moved).write(Cell::new(cursor));
            (&raw mut (*place).published).write(Cell::new(cursor.step()));
            (&raw mut (*place).is_streamed).write(false);
            (&raw mut (*place).distance).write(Distance::default());
            (&raw mut (*place).spread).write(Spread::default());
            (&raw mut (*place).offers).write(Offers::default());
            (&raw mut (*place).counter).write(Counter::default());
        }
    }

    /// The consumer.
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

    /// The producer's cursor.
    #[inline(always)]
    pub fn cursor(&self) -> ProducerCursor {
        self.moved.get()
    }

    /// Whether the slot of the current step is empty, in the buffer of a protocol. Only the first worker passes `remembers`, which caches
    /// the consumer's position.
    #[inline(always)]
    pub fn poll_credit(&self, protocol: Protocol, remembers: bool) -> bool {
        let mut cursor = self.moved.get();
        let is_empty = cursor.poll_credit(words(&self.end), protocol.slots());
        if remembers {
            self.moved.set(cursor);
        }
        is_empty
    }

    /// Whether a slot of Simple takes so many bytes best by stores that bypass the caches, and by others now and then if its time may be
    /// taken.
    #[inline(always)]
    pub fn streams(&self, len_bytes: usize, is_timed: bool) -> bool {
        self.distance.streams(len_bytes, is_timed)
    }

    /// Before a slot is filled through the caches with so many bytes by a plain copy: what [`Self::filled`] wants to have.
    #[inline(always)]
    pub(crate) fn filling(&self, len_bytes: usize) -> Option<u64> {
        self.distance.filling(len_bytes)
    }

    /// It is filled.
    #[inline(always)]
    pub(crate) fn filled(&self, began: u64, len_bytes: usize) {
        self.distance.filled(began, len_bytes);
    }

    /// Says how slots are filled. A connection whose consumer is a proxy is filled through the caches: the proxy reads next.
    pub fn set_stores(&self, stores: SlotStores) {
        self.distance.set(if self.is_streamed { SlotStores::Cached } else { stores });
    }

    /// First worker: advances to the next step.
    #[inline(always)]
    pub fn advance(&self) {
        let mut cursor = self.moved.get();
        cursor.advance();
        self.moved.set(cursor);
    }

    /// First worker: advances past a slot whose own lines carry flags (LL, LL128). The poster skips the step too, so
    /// an operation that publishes may follow.
    #[inline(always)]
    pub fn advance_untold(&self) {
        let mut cursor = self.moved.get();
        cursor.advance();
        self.moved.set(cursor);
        self.published.set(cursor.step());
    }

    /// First worker: reads credits ahead of need, so that other threads find them cached.
    #[inline(always)]
    pub fn poll_credit_ahead(&self, protocol: Protocol) {
        let mut cursor = self.moved.get();
        cursor.poll_credit_ahead(words(&self.end), protocol.slots());
        self.moved.set(cursor);
    }

    /// Poster: publishes the oldest unpublished slot (Simple).
    #[inline(always)]
    pub fn publish(&self, header: SlotHeader) {
        #[cfg(feature = "cpu")]
        crate::gpu::cpu::reduce::assert_fenced();
        let mut cursor = ProducerCursor::at(self.published.get());
        self.publish_at(&mut cursor, header);
        self.published.set(cursor.step());
    }

    #[inline(always)]
    fn publish_at(&self, cursor: &mut ProducerCursor, header: SlotHeader) {
        match self.spread.is_on() {
            true => cursor.publish_in_line(words(&self.end), header),
            false => cursor.publish(words(&self.end), header),
        }
    }

    /// First worker: counts a slot of so many bytes that is filled.
    #[inline(always)]
    pub(crate) fn count(&self, _len_bytes: usize) {
        #[cfg(feature = "cpu")]
        if let Some(traffic) = &self.counter.traffic {
            traffic.sent(_len_bytes as u32);
        }
    }

    /// The only thread of a block: publishes the slot of the current step, which is full, and counts it.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub(crate) fn publish_next(&self, header: SlotHeader) {
        crate::gpu::cpu::reduce::assert_fenced();
        let mut cursor = self.moved.get();
        self.publish_at(&mut cursor, header);
        self.moved.set(cursor);
        self.published.set(cursor.step());
        self.count(header.len_bytes as usize);
    }

    /// Asks for the lines that another message like this one would be written to, if they are known to be free: while we wait for the
    /// peer, they come.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub(crate) fn ask_for_next(&self, len_bytes: usize) {
        if len_bytes > SlotLine::PAYLOAD_BYTES && self.moved.get().knows_credit(Protocol::Simple.slots()) {
            crate::gpu::cpu::reduce::ask_to_write(self.short_message(len_bytes), len_bytes);
        }
    }

    /// From now on counts what goes over it.
    #[cfg(feature = "cpu")]
    pub fn count_in(&mut self, traffic: std::sync::Arc<Traffic>) {
        self.counter.traffic = Some(traffic);
    }

    /// Whether the consumer has consumed everything.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.moved.get().is_drained(words(&self.end))
    }

    /// The slot of the current step.
    #[inline(always)]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(&self.end, protocol, self.step())
    }

    /// Where a message of so many bytes of Simple lies in the slot of the current step.
    #[inline(always)]
    pub fn message(&self, len_bytes: usize) -> *mut u8 {
        let offset = self.spread.offset(&self.end, self.step(), len_bytes);
        self.slot(Protocol::Simple).wrapping_add(offset)
    }

    /// Where a message of so many bytes of Simple lies, fewer than [`proto::simple::SPREAD_MIN_BYTES`]: in the line of the current step's
    /// slot, or at the slot's beginning.
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

    /// If the consumer has called [`RecvConn::read_from`] before: from now on messages of Simple of so many bytes and more are offered to
    /// it, which reads them where they are. Both call it with the same number, the producer before its first message.
    #[cfg(feature = "cpu")]
    pub fn offer_from(&mut self, from_bytes: usize) {
        // ACQUIRE pairs with RELEASE in `RecvConn::read_from`.
        let is_invited = self.offer(0).reply.load_acquire() == INVITED;
        self.offers.from_bytes = is_invited.then_some(from_bytes);
    }

    /// Whether it offers long messages.
    #[cfg(feature = "cpu")]
    pub fn has_reader(&self) -> bool {
        self.offers.from_bytes.is_some()
    }

    /// Whether a message of so many bytes is offered.
    #[cfg(feature = "cpu")]
    #[inline]
    pub(crate) fn offers(&self, len_bytes: usize) -> bool {
        self.offers.from_bytes.is_some_and(|from| len_bytes >= from)
    }

    /// The offer in the slot so many steps before the current one.
    #[cfg(feature = "cpu")]
    pub(crate) fn offer(&self, steps_before: u64) -> &Offer {
        offer(&self.end, Step(self.step().0 - steps_before))
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

    /// The slot of the current step.
    #[inline(always)]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(&self.end, protocol, self.step())
    }

    /// Where a message of so many bytes of Simple lies in the slot of the current step.
    #[inline(always)]
    pub fn message(&self, len_bytes: usize) -> *mut u8 {
        let offset = self.spread.offset(&self.end, self.step(), len_bytes);
        self.slot(Protocol::Simple).wrapping_add(offset)
    }

    /// Where a message of so many bytes of Simple lies, fewer than [`proto::simple::SPREAD_MIN_BYTES`]: in the line of the current step's
    /// slot, or at the slot's beginning.
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
    /// the producer calls [`SendConn::offer_from`], which finds the invitation in the first slot.
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
