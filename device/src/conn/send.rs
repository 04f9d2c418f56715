//! The producer's end.

use super::end::{Counter, Spread, load, slot, words};
#[cfg(feature = "cpu")]
use super::end::{INVITED, offer};
use crate::distance::{Distance, Fill, SlotStores};
use crate::gpu::{Awaited, End, Wait};
#[cfg(feature = "cpu")]
use crate::traffic::Traffic;
use core::cell::Cell;
use oxccl_shared::abi::{ConnControl, ConnEnd, ConnLayout, Protocol, Rank, SlotHeader, Step};
#[cfg(feature = "cpu")]
use oxccl_shared::abi::{Offer, SlotLine};
#[cfg(feature = "cpu")]
use oxccl_shared::fifo::OUTBOX_BUFFERS;
use oxccl_shared::fifo::{Place, ProducerCursor};

/// The producer's end of a connection.
pub struct SendConn {
    pub(super) end: ConnEnd,
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
    #[cfg(feature = "cpu")]
    pub(super) pair: super::pair::Pair,
}

/// From which length on a producer offers its memory instead of filling slots.
#[derive(Default)]
struct Offers {
    #[cfg(feature = "cpu")]
    from_bytes: Option<usize>,
}

// SAFETY: the memory under an end is shared by design: all concurrent access goes through `Word`s or is ordered by them.
unsafe impl Send for SendConn {}
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
            #[cfg(feature = "cpu")]
            (&raw mut (*place).pair).write(super::pair::Pair::default());
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

    /// Whether both ends are processors, and nobody between them sees slots. Both ends say the same.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub fn is_spread(&self) -> bool {
        self.spread.is_on()
    }

    /// How a slot of Simple takes so many bytes best. If `may_time`, some are to be filled by `time`, which takes the time.
    #[inline(always)]
    pub fn fill(&self, len_bytes: usize, may_time: bool) -> Fill {
        // What has just been read is in our caches.
        #[cfg(feature = "cpu")]
        if self.pair.has_chosen() {
            return Fill::Cached;
        }
        self.distance.fill(len_bytes, may_time)
    }

    /// Fills a slot by `fill` and takes the time, as [`Self::fill`] says.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub(crate) fn time(&self, len_bytes: usize, fill: impl FnOnce()) {
        self.distance.time(len_bytes, fill);
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

    /// As [`Self::advance_untold`], past an exchange with the consumer whose message of it has come: what that says need not be read.
    #[inline(always)]
    pub fn advance_after_exchange(&self) {
        let cursor = ProducerCursor::after_exchange(self.step());
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
        #[cfg(feature = "cpu")]
        let place = self.pair.give();
        #[cfg(not(feature = "cpu"))]
        let place = Place::Slot;
        self.publish_at(&mut cursor, header, place);
        self.published.set(cursor.step());
    }

    /// Poster: says what the oldest unpublished slot is going to hold (Simple, between GPUs).
    #[inline(always)]
    pub(crate) fn announce(&self, header: SlotHeader) {
        ProducerCursor::at(self.published.get()).announce(words(&self.end), header);
    }

    /// Poster: publishes that slot.
    #[inline(always)]
    pub(crate) fn publish_announced(&self) {
        let mut cursor = ProducerCursor::at(self.published.get());
        cursor.publish_announced(words(&self.end));
        self.published.set(cursor.step());
    }

    #[inline(always)]
    fn publish_at(&self, cursor: &mut ProducerCursor, header: SlotHeader, place: Place) {
        match self.spread.is_on() {
            true => cursor.publish_in_line(words(&self.end), header, place),
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
        self.publish_at(&mut cursor, header, Place::Slot);
        self.moved.set(cursor);
        self.published.set(cursor.step());
        self.count(header.len_bytes as usize);
    }

    /// Whether the message that is being sent lies in its slot, not in a buffer.
    #[cfg(feature = "cpu")]
    #[inline]
    pub(crate) fn fills_slot(&self) -> bool {
        !self.pair.has_chosen()
    }

    /// As [`Self::publish_next`], of a message where [`Self::message`] says.
    #[cfg(feature = "cpu")]
    pub(crate) fn publish_next_message(&self, header: SlotHeader) {
        self.publish(header);
        self.advance();
        self.count(header.len_bytes as usize);
    }

    /// Asks for the lines that another message like this one would be written to, if they are known to be free: while we wait for the
    /// peer, they come.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub(crate) fn ask_for_next(&self, len_bytes: usize) {
        if len_bytes > SlotLine::PAYLOAD_BYTES
            && crate::gpu::cpu::reduce::asking_pays()
            && self.moved.get().knows_credit(Protocol::Simple.slots())
        {
            crate::gpu::cpu::reduce::ask_to_write(self.short_message(len_bytes), len_bytes);
        }
    }

    /// Asks for the line in which another message like this one would be published, if its slot is known to be free. Stores retire in order:
    /// without it, those of the next call wait behind the one to this line, and a processor has room for some hundred.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub(crate) fn ask_for_next_line(&self, len_bytes: usize) {
        if self.spread.is_on() && self.moved.get().knows_credit(Protocol::Simple.slots()) {
            let in_line = if len_bytes > SlotLine::PAYLOAD_BYTES { 0 } else { len_bytes };
            let header_bytes = size_of::<SlotLine>() - SlotLine::PAYLOAD_BYTES;
            let line = &raw const words(&self.end).consumer_side.lines[self.step().slot()];
            crate::gpu::cpu::reduce::ask_to_write(line.cast_mut().cast(), header_bytes + in_line);
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

    /// Whether the consumer has consumed everything.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.moved.get().is_drained(words(&self.end))
    }

    /// The answer to the question in the slot before the current one, if it has come.
    #[inline(always)]
    pub(crate) fn poll_answer(&self, tag: u32) -> Option<u64> {
        words(&self.end).producer_side.answer.get(Step(self.step().0 - 1), tag)
    }

    /// The slot of the current step.
    #[inline(always)]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(&self.end, protocol, self.step())
    }

    /// Where a message of so many bytes of Simple is filled: in the slot of the current step, or in a buffer of the pair's. The next
    /// [`Self::publish`] is that message's: it says so.
    #[inline(always)]
    pub fn message(&self, len_bytes: usize) -> *mut u8 {
        #[cfg(feature = "cpu")]
        if let Some(buffer) = self.pair.choose(len_bytes) {
            return buffer;
        }
        let offset = self.spread.offset(&self.end, self.step(), len_bytes);
        self.slot(Protocol::Simple).wrapping_add(offset)
    }

    /// Where a message of so many bytes is filled that goes over those of `all` connections that `chosen` names: in a buffer of the outbox that they
    /// have in common, if there is one that everybody has read. The next [`Self::publish`] of each is that message's.
    ///
    /// `all` are the connections that have got this outbox: who of them read a buffer last is not always who reads it next.
    #[cfg(feature = "cpu")]
    pub(crate) fn in_outbox(all: &[SendConn], chosen: &[u16], len_bytes: usize) -> Option<*mut u8> {
        let chosen = || chosen.iter().map(|index| &all[*index as usize]);
        if !chosen().all(|conn| conn.pair.has_outbox(len_bytes)) {
            return None;
        }
        let is_free = |index: &usize| all.iter().all(|conn| conn.is_outbox_read(*index));
        let index = (0..OUTBOX_BUFFERS).find(is_free)?;
        chosen().map(|conn| conn.pair.choose_outbox(index, conn.step())).last().flatten()
    }

    /// Whether the consumer has read what we last put in this buffer of our outbox for it.
    #[cfg(feature = "cpu")]
    fn is_outbox_read(&self, index: usize) -> bool {
        self.pair.outbox_step(index).is_none_or(|step| {
            let mut cursor = self.moved.get();
            let is_read = cursor.poll_consumed(words(&self.end), step);
            self.moved.set(cursor);
            is_read
        })
    }

    /// How many of the bytes that are left of a message are filled next: a slot's, or more, and equal parts, in a buffer of the pair's.
    #[cfg(feature = "cpu")]
    #[inline]
    pub(crate) fn part(&self, left: usize) -> usize {
        self.pair.part(left).unwrap_or(left.min(self.layout().simple_slot_bytes as usize))
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

    /// If the consumer has called [`RecvConn::read_from`](super::RecvConn::read_from) before: from now on messages of Simple of so many bytes and more are offered to
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
