//! The sending end: the consumer of a block that a local kernel fills.
//!
//! ```text
//! kernel fills a slot      proto::ready      -> received
//! slot -> isend            (the slot itself) -> transmitted
//! test, in order           head              -> done: the kernel may fill the slot again
//! ```

use super::block::{BlockRegistrations, ProxyBlock};
use super::counters::{Counters, Running, SubOp};
use super::error::{EndError, EndFault, EndId, Outstanding};
use super::op_header::OP_HEADER_BYTES;
use super::order::Keep;
use super::unpack_buffer::UnpackBuffer;
use crate::net::bypass::Loans;
use crate::net::{NetError, Registration, Request, SendComm};
use oxccl_shared::abi::Protocol;
use oxccl_shared::abi::{ConnLayout, Step};
use oxccl_shared::fifo::{STEPS, StepConsumer, split_over};
use oxccl_shared::proto;
use std::ops::Range;
use std::sync::Arc;

/// Whether the other end has been told what comes.
#[derive(Clone, Copy, Debug)]
enum Announced {
    Not,
    Leaving(Request),
    Done,
}

/// The sending end of one connection.
pub struct SendEnd {
    place: EndId,
    stages: Stages,
    running: Option<Running>,
    failed: Option<Arc<EndError>>,
    /// Dropped last: what the block lies in, where this end is who keeps it.
    _memory: Option<Keep>,
}

/// What slots pass through.
struct Stages {
    // Dropped before the memory that it may still be reading.
    comm: Box<dyn SendComm>,
    unpack_buffer: UnpackBuffer,
    block: ProxyBlock,
    slots: BlockRegistrations,
    unpack_registration: Registration,
    /// Looks for full slots.
    looking: StepConsumer<'static>,
    /// Gives slots back.
    giving: StepConsumer<'static>,
    /// The sends under way; that of step `s` at `s % STEPS`.
    requests: [Request; STEPS],
    loans: Loans,
    announced: Announced,
}

impl SendEnd {
    /// The consumer of `block`, whose slots it sends over `comm`.
    ///
    /// # Errors
    /// The network does not take the memory.
    ///
    /// # Safety
    /// 1. This is the block's only consumer, and the block's memory outlives it.
    pub unsafe fn new(
        mut comm: Box<dyn SendComm>,
        block: ProxyBlock,
        place: EndId,
    ) -> Result<SendEnd, NetError> {
        let mut unpack_buffer = UnpackBuffer::new(0);
        // SAFETY: obligation 1; an end drops its communicator before its unpack buffer.
        let slots = unsafe { block.register(&mut *comm)? };
        // SAFETY: as above.
        let unpack_registration = unsafe { unpack_buffer.register(&mut *comm)? };
        let (looking, giving) = (split_over(block.words()).1, split_over(block.words()).1);
        let stages = Stages {
            comm,
            unpack_buffer,
            block,
            slots,
            unpack_registration,
            looking,
            giving,
            requests: [Request(0); STEPS],
            loans: Loans::default(),
            announced: Announced::Done,
        };
        Ok(SendEnd { place, stages, running: None, failed: None, _memory: None })
    }

    /// The same end, which also keeps its block's memory alive.
    pub fn keeping(self, memory: Keep) -> Self {
        Self { _memory: Some(memory), ..self }
    }

    /// Has the counted slot at `slot` stand for `len_bytes` at `body`, so that nobody need copy them there. Nothing happens and the
    /// answer is no if that is not the start of a slot of this end, if the network must know memory beforehand, or if the bytes
    /// are better copied.
    ///
    /// # Safety
    /// 1. The slot is empty, and is published next with a length of `len_bytes`.
    /// 2. Until it has been given back or this end is driven for the last time, the bytes are readable and nobody writes them.
    pub(crate) unsafe fn lend(&mut self, slot: *mut u8, body: *const u8, len_bytes: usize) -> bool {
        let Some(slot) = self.stages.block.counted_slot(slot) else { return false };
        let is_lent = Loans::pay(body) && self.stages.comm.reaches_all_memory();
        if is_lent {
            self.stages.loans.begin(slot, body, len_bytes);
        }
        is_lent
    }

    /// Where the bytes of the counted slot at `slot` are, if it is one of this end's and lent.
    pub(crate) fn lent(&self, slot: *const u8) -> Option<*const u8> {
        if self.stages.loans.is_empty() {
            return None;
        }
        self.stages.loans.body(self.stages.block.counted_slot(slot)?)
    }

    /// Call before writing to this range of addresses: what is lent of it and has not left is copied into its slots.
    pub(crate) fn return_loans(&mut self, memory: &Range<usize>) {
        if self.stages.loans.is_empty() {
            return;
        }
        while let Some((slot, body, len_bytes)) = self.stages.loans.take_within(memory) {
            let to = self.stages.block.slot(Protocol::Simple, Step(slot as u64));
            // SAFETY: what `lend` has had its caller promise: the body is readable, and its bytes are a slot's, which its producer
            // leaves alone until `release`. A block whose slots lie on a device lends nothing: see `lend`.
            unsafe { to.copy_from_nonoverlapping(body, len_bytes) };
            let (oldest, in_flight) =
                (self.stages.giving.step(), self.stages.looking.step().0 - self.stages.giving.step().0);
            if ((slot + STEPS - oldest.slot()) % STEPS) < in_flight as usize {
                // SAFETY: the slot is full until `release`, which follows the end of its send.
                let is_moved = unsafe { self.stages.comm.relocate(self.stages.requests[slot], to) };
                if !is_moved {
                    // What is written next would be sent instead. The other end sees the connection end.
                    self.fail(EndFault::NotMoved);
                    return;
                }
            }
        }
    }

    /// Which connection it is.
    pub fn place(&self) -> EndId {
        self.place
    }

    /// Slot sizes.
    pub fn layout(&self) -> &ConnLayout {
        self.stages.block.layout()
    }

    /// The step that is sent next.
    pub fn step(&self) -> Step {
        self.stages.looking.step()
    }

    /// Whether the last sub-operation is over, or none has begun.
    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// How far the sub-operation under way is.
    pub fn outstanding(&self) -> Option<Outstanding> {
        let running = self.running?;
        let mut counters = running.counters;
        counters.posted = (counters.done + running.sub.protocol.slots() as u64).min(running.sub.steps);
        Some(Outstanding { sub: running.sub, first: running.first, counters })
    }

    /// Begins a sub-operation: the next `sub.steps` slots are its. The end must be [idle](Self::is_idle).
    pub fn begin(&mut self, sub: SubOp) {
        debug_assert!(self.is_idle(), "{}: a sub-operation is under way", self.place);
        if sub.steps == 0 {
            return;
        }
        let is_told = self.stages.comm.set_tag(sub.tag) || sub.protocol.is_flagged();
        self.stages.announced = if is_told { Announced::Done } else { Announced::Not };
        self.running = Some(Running::new(sub, self.stages.looking.step()));
    }

    /// Moves what can be moved without waiting. Returns how many transitions there were; none if nothing is under way.
    ///
    /// # Errors
    /// The connection is dead, and the same error from now on.
    pub fn progress(&mut self) -> Result<usize, Arc<EndError>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(running) = &mut self.running else { return Ok(0) };
        let before = running.counters;
        if let Err(why) = self.stages.advance(running) {
            return Err(self.fail(why));
        }
        let moved = moved(&before, &running.counters);
        if running.counters.done == running.sub.steps && matches!(self.stages.announced, Announced::Done) {
            self.running = None;
        }
        Ok(moved)
    }

    #[cold]
    fn fail(&mut self, why: EndFault) -> Arc<EndError> {
        let error = EndError { place: self.place, outstanding: self.outstanding(), why };
        self.failed.insert(Arc::new(error)).clone()
    }
}

impl Stages {
    fn advance(&mut self, running: &mut Running) -> Result<(), EndFault> {
        while self.send_next(running)? {}
        if let Announced::Leaving(request) = self.announced
            && self.comm.test(request)?.is_some()
        {
            self.announced = Announced::Done;
        }
        while self.finish_oldest(running)? {}
        Ok(())
    }

    /// Sends the operation header, where there is one that has not been sent. No if the network does not take it now.
    ///
    /// It waits for the first slot: a network that gathers sends until it is asked for one sends both in one go, and the other
    /// end can do nothing with it before.
    fn announce(&mut self, running: &Running) -> Result<bool, EndFault> {
        if !matches!(self.announced, Announced::Not) {
            return Ok(true);
        }
        let start = self.unpack_buffer.op_header();
        // SAFETY: a line of ours that nothing is sent from: the last operation header has left, or its operation would go on.
        unsafe { start.cast::<[u8; OP_HEADER_BYTES]>().write(running.op_header().encode()) };
        // SAFETY: the line is registered, and written next for the next operation.
        let sent = unsafe { self.comm.isend(start, OP_HEADER_BYTES, self.unpack_registration)? };
        self.announced = sent.map_or(Announced::Not, Announced::Leaving);
        Ok(sent.is_some())
    }

    /// Sends the next slot, if it is full and the network takes it.
    fn send_next(&mut self, running: &mut Running) -> Result<bool, EndFault> {
        let Running { sub, counters, .. } = &*running;
        let in_flight = counters.transmitted - counters.done;
        if counters.transmitted == sub.steps || in_flight == STEPS as u64 {
            return Ok(false);
        }
        let (step, layout) = (self.looking.step(), *self.block.layout());
        let base = self.block.base(sub.protocol);
        // SAFETY: the block vouches for its memory, and both ends of `looking` are its words.
        let Some(header) = (unsafe { proto::ready(sub.protocol, &layout, base, &mut self.looking) }) else {
            return Ok(false);
        };
        if header.tag != sub.tag {
            return Err(EndFault::OtherOperation { step, found: header.tag });
        }
        // Before anything leaves: a slot that the other end does not take, not even what precedes it, waits for the other end.
        running.counters.received = running.counters.transmitted + 1;
        running.counters.flushed = running.counters.received;
        if !self.announce(running)? {
            return Ok(false);
        }
        let Running { sub, counters, .. } = running;
        let len_bytes = proto::travel_bytes(sub.protocol, &layout, step, header);
        let start = match self.loans.body(step.slot()) {
            Some(lent) => lent,
            None => self.block.slot(sub.protocol, step).cast_const(),
        };
        // SAFETY: a slot lies in what was registered; it is full, so that its producer leaves it alone until `release`. Of lent bytes
        // `lend` has had its caller promise the same, and found that this network registers nothing.
        let sent = unsafe { self.comm.isend(start, len_bytes, self.slots.of(sub.protocol))? };
        let Some(request) = sent else { return Ok(false) };
        self.requests[step.slot()] = request;
        self.looking.advance();
        counters.transmitted += 1;
        Ok(true)
    }

    /// Gives the oldest slot under way back, if it has left.
    fn finish_oldest(&mut self, running: &mut Running) -> Result<bool, EndFault> {
        let counters = &mut running.counters;
        if counters.done == counters.transmitted {
            return Ok(false);
        }
        let slot = self.giving.step().slot();
        if self.comm.test(self.requests[slot])?.is_none() {
            return Ok(false);
        }
        self.loans.end(slot);
        self.giving.release();
        counters.done += 1;
        Ok(true)
    }
}

/// Transitions between two states.
pub(super) fn moved(before: &Counters, after: &Counters) -> usize {
    let sum = |c: &Counters| c.received + c.transmitted + c.done;
    (sum(after) - sum(before)) as usize
}
