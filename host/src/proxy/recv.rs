//! The receiving end: the producer of a block that a local kernel empties.
//!
//! ```text
//! credit -> irecv                 the slot itself, or beside it     -> posted
//! test, in order                                                    -> received
//! flush, for device memory                                          -> flushed
//! tail, or unpacked line by line   the kernel sees it                -> transmitted
//! ```

use super::block::{BlockRegistrations, ProxyBlock};
use super::counters::{Running, SubOp};
use super::error::{EndError, EndFault, EndId, Outstanding};
use super::op_header::{OP_HEADER_BYTES, OpHeader};
use super::order::Keep;
use super::send::moved;
use super::unpack_buffer::UnpackBuffer;
use crate::net::bypass::{Arrivals, Expected};
use crate::net::{NetError, RecvComm, Registration, Request};
use oxccl_shared::abi::{ConnLayout, SlotHeader, Step};
use oxccl_shared::fifo::{STEPS, StepProducer, split_over};
use oxccl_shared::proto;
use std::sync::Arc;

/// Whether the other end has said what comes.
#[derive(Clone, Copy, Debug)]
enum Announced {
    Not,
    Awaited(Request),
    Done,
}

/// A step between its receive and its publication.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    /// The receive, then the flush.
    request: Option<Request>,
    len_bytes: usize,
}

/// The receiving end of one connection.
pub struct RecvEnd {
    place: EndId,
    stages: Stages,
    running: Option<Running>,
    failed: Option<Arc<EndError>>,
    /// Dropped last: what the block lies in, where this end is who keeps it.
    _memory: Option<Keep>,
}

/// What slots pass through.
struct Stages {
    // Dropped before the memory that it may still be writing.
    comm: Box<dyn RecvComm>,
    unpack_buffer: UnpackBuffer,
    block: ProxyBlock,
    slots: BlockRegistrations,
    unpack_registration: Registration,
    /// Looks for empty slots.
    looking: StepProducer<'static>,
    /// Publishes full ones.
    publishing: StepProducer<'static>,
    /// What is under way; step `s` at `s % STEPS`.
    arriving: [Arriving; STEPS],
    arrivals: Arrivals,
    announced: Announced,
}

impl RecvEnd {
    /// The producer of `block`, whose slots come over `comm`.
    ///
    /// # Errors
    /// The network does not take the memory.
    ///
    /// # Safety
    /// 1. This is the block's only producer, and the block's memory outlives it.
    pub unsafe fn new(
        mut comm: Box<dyn RecvComm>,
        block: ProxyBlock,
        place: EndId,
    ) -> Result<RecvEnd, NetError> {
        let mut unpack_buffer = UnpackBuffer::new(block.line_slot_bytes_max());
        // SAFETY: obligation 1; an end drops its communicator before its unpack buffer.
        let slots = unsafe { block.register(&mut *comm)? };
        // SAFETY: as above.
        let unpack_registration = unsafe { unpack_buffer.register(&mut *comm)? };
        let (looking, publishing) = (split_over(block.words()).0, split_over(block.words()).0);
        let arrivals = Arrivals::new(block.layout().simple_slot_bytes as usize);
        let stages = Stages {
            comm,
            unpack_buffer,
            block,
            slots,
            unpack_registration,
            looking,
            publishing,
            arriving: [Arriving { request: None, len_bytes: 0 }; STEPS],
            arrivals,
            announced: Announced::Done,
        };
        Ok(RecvEnd { place, stages, running: None, failed: None, _memory: None })
    }

    /// The same end, which also keeps its block's memory alive.
    pub fn keeping(self, memory: Keep) -> Self {
        Self { _memory: Some(memory), ..self }
    }

    /// A message will come, whose bytes may go straight to where it says, if the network need not know memory beforehand.
    ///
    /// # Safety
    /// 1. Until all of its slots are released or this end is driven for the last time, the bytes are writable, and nobody else
    ///    accesses those of slots that are not yet published.
    /// 2. Whoever empties a counted slot of it asks [`Self::take_arrived`] first.
    pub(crate) unsafe fn expect(&mut self, message: Expected) {
        if self.stages.comm.reaches_all_memory() {
            self.stages.arrivals.expect(message);
        }
    }

    /// Where the bytes of the full counted slot at `slot` are, if it is one of this end's and they are not in it. To be asked once
    /// for a slot.
    pub(crate) fn take_arrived(&mut self, slot: *const u8) -> Option<*mut u8> {
        if self.stages.arrivals.is_empty() {
            return None;
        }
        self.stages.arrivals.take(self.stages.block.counted_slot(slot)?)
    }

    /// An operation begins: what has come of those before it takes no place among what is expected.
    pub(crate) fn forget_arrived(&mut self) {
        self.stages.arrivals.forget_before(self.stages.looking.step());
    }

    /// Which connection it is.
    pub fn place(&self) -> EndId {
        self.place
    }

    /// Slot sizes.
    pub fn layout(&self) -> &ConnLayout {
        self.stages.block.layout()
    }

    /// The step that is received next.
    pub fn step(&self) -> Step {
        self.stages.looking.step()
    }

    /// Whether the last sub-operation is over (published, not necessarily consumed), or none has begun.
    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// How far the sub-operation under way is.
    pub fn outstanding(&self) -> Option<Outstanding> {
        let running = self.running?;
        let mut counters = running.counters;
        // RELAXED: only told to a person.
        let head = self.stages.block.words().producer_side.head.load_relaxed();
        counters.done = head.saturating_sub(running.first.0).min(counters.transmitted);
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
    /// The connection is dead, and the same error from now on. What was published before stays so.
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
        if running.counters.transmitted == running.sub.steps {
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
        if !matches!(self.announced, Announced::Done) {
            self.await_header(running)?;
            if matches!(self.announced, Announced::Not) {
                return Ok(());
            }
        }
        let posted = repeat(|| self.post_next(running));
        if matches!(self.announced, Announced::Done) {
            // What came before the network failed is published all the same: it may be all that was to come.
            self.receive(running)?;
        }
        posted
    }

    /// Takes what has come.
    fn receive(&mut self, running: &mut Running) -> Result<(), EndFault> {
        loop {
            let received = self.receive_next(running);
            // At once: to ask for the next receive may cost a call of the system, for which a kernel that waits would wait too.
            repeat(|| self.flush_next(running))?;
            repeat(|| self.publish_next(running))?;
            if !received? {
                return Ok(());
            }
        }
    }

    /// Receives the operation header, where there is one, and compares it with what this rank does.
    fn await_header(&mut self, running: &Running) -> Result<(), EndFault> {
        if matches!(self.announced, Announced::Not) {
            let start = self.unpack_buffer.op_header();
            // SAFETY: a registered line of ours that nobody else uses before this request is done.
            let posted = unsafe { self.comm.irecv(start, OP_HEADER_BYTES, self.unpack_registration)? };
            self.announced = posted.map_or(Announced::Not, Announced::Awaited);
        }
        if let Announced::Awaited(request) = self.announced
            && let Some(len_bytes) = self.comm.test(request)?
        {
            // SAFETY: the receive is done, so that the line is ours again.
            let bytes: [u8; OP_HEADER_BYTES] =
                unsafe { self.unpack_buffer.op_header().cast::<[u8; _]>().read() };
            let expected = running.op_header();
            match OpHeader::decode(&bytes[..len_bytes.min(OP_HEADER_BYTES)]) {
                None => return Err(EndFault::NoHeader { expected, len_bytes }),
                Some(found) if found != expected => return Err(EndFault::Mismatch { expected, found }),
                Some(_) => self.announced = Announced::Done,
            }
        }
        Ok(())
    }

    /// Begins to receive into the next slot, if it is empty and the network has a request to spare. A slot whose lines carry
    /// flags is received beside its place, where a kernel is looking already.
    fn post_next(&mut self, running: &mut Running) -> Result<bool, EndFault> {
        let Running { sub, counters, .. } = running;
        if counters.posted == sub.steps || !self.looking.poll_credit(sub.protocol.slots()) {
            return Ok(false);
        }
        let step = self.looking.step();
        let max_bytes = proto::slot_bytes(sub.protocol, self.block.layout());
        let wanted = self.arrivals.of(step).filter(|at| at.tag == sub.tag);
        let (start, max_bytes, registration) = match (sub.protocol.is_flagged(), wanted) {
            (true, _) => (self.unpack_buffer.slot(step.slot()), max_bytes, self.unpack_registration),
            (false, Some(at)) => (at.start, at.len_bytes, self.slots.of(sub.protocol)),
            (false, None) => (self.block.slot(sub.protocol, step), max_bytes, self.slots.of(sub.protocol)),
        };
        // SAFETY: the slot lies in what was registered and is empty, so that its consumer leaves it alone until it is published;
        // that of the unpack buffer is free because the step 8 before has been unpacked; of expected bytes `expect` has had its caller
        // promise the same, and found that this network registers nothing.
        let posted = unsafe { self.comm.irecv(start, max_bytes, registration)? };
        let Some(request) = posted else { return Ok(false) };
        self.arriving[step.slot()] = Arriving { request: Some(request), len_bytes: 0 };
        if wanted.is_some() {
            self.arrivals.place(step.slot(), start);
        }
        self.looking.advance();
        counters.posted += 1;
        Ok(true)
    }

    /// Takes the next receive, if it is done, and begins its flush, if it needs one.
    fn receive_next(&mut self, running: &mut Running) -> Result<bool, EndFault> {
        let step = running.step(running.counters.received);
        let Running { sub, counters, .. } = running;
        let arriving = &mut self.arriving[step.slot()];
        if counters.received == counters.posted {
            return Ok(false);
        }
        let Some(request) = arriving.request else { return Ok(false) };
        let Some(len_bytes) = self.comm.test(request)? else { return Ok(false) };
        *arriving = Arriving { request: None, len_bytes };
        if self.block.needs_flush(sub.protocol) {
            let (start, registration) = (self.block.slot(sub.protocol, step), self.slots.of(sub.protocol));
            // SAFETY: as in `post_next`; the receive is done.
            arriving.request = unsafe { self.comm.flush(start, len_bytes, registration)? };
        }
        counters.received += 1;
        Ok(true)
    }

    /// Takes the next flush, if it is done.
    fn flush_next(&mut self, running: &mut Running) -> Result<bool, EndFault> {
        let step = running.step(running.counters.flushed);
        let counters = &mut running.counters;
        if counters.flushed == counters.received {
            return Ok(false);
        }
        if let Some(request) = self.arriving[step.slot()].request
            && self.comm.test(request)?.is_none()
        {
            return Ok(false);
        }
        counters.flushed += 1;
        Ok(true)
    }

    /// Shows the kernel the next slot.
    fn publish_next(&mut self, running: &mut Running) -> Result<bool, EndFault> {
        let Running { sub, counters, .. } = running;
        if counters.transmitted == counters.flushed {
            return Ok(false);
        }
        let (step, layout) = (self.publishing.step(), self.block.layout());
        let len_bytes = self.arriving[step.slot()].len_bytes;
        let header = if sub.protocol.is_flagged() {
            let (from, to) = (self.unpack_buffer.slot(step.slot()), self.block.slot(sub.protocol, step));
            // SAFETY: the receive is done, so `from` is ours and as long as a slot; the slot has credit and this is its producer.
            let unpacked = unsafe { proto::unpack(sub.protocol, layout, step, from, len_bytes, to) };
            unpacked.ok_or(EndFault::NoSlot { step, len_bytes })?
        } else {
            SlotHeader { tag: sub.tag, len_bytes: len_bytes as u32 }
        };
        proto::publish(sub.protocol, &mut self.publishing, header);
        counters.transmitted += 1;
        Ok(true)
    }
}

/// Takes one step after the other, until one cannot be taken yet.
fn repeat(mut step: impl FnMut() -> Result<bool, EndFault>) -> Result<(), EndFault> {
    while step()? {}
    Ok(())
}
