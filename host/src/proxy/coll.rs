//! The end of in-network reduction: the consumer of the block that a head's kernel fills and the producer of the
//! block that it empties, with the network between them.
//!
//! ```text
//! kernel fills a slot   -> posted       iallreduce from that slot into the same one of the other block
//! test, in order        -> published    tail of the one block, head of the other
//! ```
//! Networks match operations by order and do not detect heads that run different operations. So each operation of a
//! communicator begins with a *check*: a reduction of one number, the sum of all heads' tags. If the tags differ, at
//! least one is not the mean; its head sees a sum that differs from its own tag times the number of heads. No result
//! of the operation is published to the kernel before. The check is sent right before the first slot, so it costs a
//! message and no wait.

use super::block::{BlockRegistrations, ProxyBlock};
use super::order::{Elements, Keep};
use crate::net::coll::{CollComm, CollPart, Head, Reduction};
use crate::net::{NetError, NetMemory, NetMemoryKind, Registration, Request};
use core::fmt;
use oxccl_shared::abi::{ConnLayout, DataType, RedOp, SlotHeader, Step};
use oxccl_shared::fifo::{STEPS, StepConsumer, StepProducer, split_over};

/// The reduction of the check; a network without it is unusable.
pub const CHECKED: (DataType, RedOp) = (DataType::U64, RedOp::Sum);

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollOp {
    /// Its tag, the same on all heads.
    pub tag: u32,
    /// Its elements and the network's operator.
    pub elements: Elements,
    /// Its slots; `u64::MAX` where whoever begins the next operation knows that all of this one's have been published.
    pub steps: u64,
}

/// Why an end has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CollFault {
    /// The network.
    Net(NetError),
    /// A head runs another operation.
    Mismatch {
        /// This head's operation.
        op: CollOp,
        /// Sum of the heads' tags.
        sum: u64,
    },
}

/// Progress of an operation's check.
#[derive(Clone, Copy, Debug)]
enum Check {
    Due,
    Under(Request),
    Passed,
}

/// The operands of the check, on their own line.
#[repr(C, align(128))]
struct Sums {
    ours: u64,
    all: u64,
}

/// A head's end.
pub struct CollEnd {
    // Dropped before the memory that it may still be using.
    comm: Box<dyn CollComm>,
    head: Head,
    up: ProxyBlock,
    down: ProxyBlock,
    slots: [BlockRegistrations; 2],
    sums: Box<Sums>,
    sums_registration: Registration,
    /// Polls for full slots of `up` and for empty ones of `down`.
    looking: (StepConsumer<'static>, StepProducer<'static>),
    /// Releases slots and publishes results.
    ending: (StepConsumer<'static>, StepProducer<'static>),
    /// Reductions in flight; that of step `s` at `s % STEPS`.
    under_way: [(Request, SlotHeader); STEPS],
    op: Option<CollOp>,
    /// The first step of the operation.
    first: Step,
    check: Check,
    failed: Option<CollFault>,
    _memory: Keep,
}

impl CollEnd {
    /// Connects the block `up`, which the kernel fills, and `down`, which it empties, both in host memory that
    /// `memory` keeps alive.
    ///
    /// # Errors
    /// The network refuses to register the memory.
    ///
    /// # Safety
    /// 1. This is the only consumer of `up` and the only producer of `down`, and `memory` keeps both alive.
    pub unsafe fn new(
        mut comm: Box<dyn CollComm>,
        head: Head,
        [up, down]: [ProxyBlock; 2],
        memory: Keep,
    ) -> Result<CollEnd, NetError> {
        // SAFETY: obligation 1; an end drops its communicator before its memory.
        let slots = unsafe { [up.register(&mut *comm)?, down.register(&mut *comm)?] };
        let mut sums = Box::new(Sums { ours: 0, all: 0 });
        let line = NetMemory {
            start: (&raw mut *sums).cast(),
            len_bytes: size_of::<Sums>(),
            kind: NetMemoryKind::Host,
        };
        // SAFETY: as above; a box's content does not move.
        let sums_registration = unsafe { comm.register(line)? };
        let (up_words, down_words) = (up.words(), down.words());
        Ok(CollEnd {
            comm,
            head,
            up,
            down,
            slots,
            sums,
            sums_registration,
            looking: (split_over(up_words).1, split_over(down_words).0),
            ending: (split_over(up_words).1, split_over(down_words).0),
            under_way: [(Request(0), SlotHeader::default()); STEPS],
            op: None,
            first: Step(0),
            check: Check::Passed,
            failed: None,
            _memory: memory,
        })
    }

    /// Begins an operation. All results of the previous one have arrived: its kernel has ended, or the end [is idle](Self::is_idle).
    pub fn begin(&mut self, op: CollOp) {
        debug_assert_eq!(self.looking.0.step(), self.ending.0.step(), "an operation is under way");
        self.op = Some(op);
        self.first = self.ending.0.step();
        self.check = Check::Due;
    }

    /// Whether all slots of the operation have been published.
    pub fn is_idle(&self) -> bool {
        self.op.is_none_or(|op| self.ending.0.step().0 - self.first.0 >= op.steps)
    }

    /// The operation in progress: its first step, slots whose reduction has begun, and slots that have been published.
    pub fn progress(&self) -> (Step, u64, u64) {
        let since = |step: Step| step.0 - self.first.0;
        (self.first, since(self.looking.0.step()), since(self.ending.0.step()))
    }

    /// Slots of both blocks.
    pub fn layout(&self) -> &ConnLayout {
        self.up.layout()
    }

    /// Makes progress without blocking. Returns the number of transitions.
    pub fn do_work(&mut self) -> usize {
        let (Some(op), None) = (self.op, &self.failed) else { return 0 };
        let mut moved = 0;
        if let Err(fault) = self.advance(op, &mut moved) {
            self.failed = Some(fault);
        }
        moved
    }

    /// The error, if it has failed.
    pub fn failure(&self) -> Option<&CollFault> {
        self.failed.as_ref()
    }

    /// What reductions of this head that are in flight wait for, if there are any.
    pub fn awaited(&self) -> Option<String> {
        let is_under_way =
            matches!(self.check, Check::Under(_)) || self.looking.0.step() != self.ending.0.step();
        is_under_way.then(|| self.comm.awaited())
    }

    fn advance(&mut self, op: CollOp, moved: &mut usize) -> Result<(), CollFault> {
        while self.post_next(op)? {
            *moved += 1;
        }
        self.look_at_check(op, moved)?;
        while self.publish_next()? {
            *moved += 1;
        }
        Ok(())
    }

    /// Starts the reduction of the next full slot, with the check before the first. Returns whether it started one.
    fn post_next(&mut self, op: CollOp) -> Result<bool, CollFault> {
        let step = self.looking.0.step();
        let under_way = step.0 - self.ending.0.step().0;
        if under_way == STEPS as u64
            || step.0 - self.first.0 >= op.steps
            || !self.looking.1.poll_credit(STEPS)
        {
            return Ok(false);
        }
        let Some(header) = self.looking.0.poll() else { return Ok(false) };
        if matches!(self.check, Check::Due) && !self.post_check(op)? {
            return Ok(false);
        }
        let part = |block: &ProxyBlock, slots: &BlockRegistrations| CollPart {
            start: block.counted(step),
            registration: slots.counted(),
        };
        let (send, recv) = (part(&self.up, &self.slots[0]), part(&self.down, &self.slots[1]));
        let Elements { dtype, op: operator } = op.elements;
        let count = header.len_bytes as usize / dtype.size_bytes();
        let what = Reduction { count, dtype, op: operator };
        // SAFETY: both are slots of registered blocks, at least as long as the header says: both blocks have the
        // kernel's layout. The one is full and not released before the request completes, the other empty and not
        // published before.
        let begun = unsafe { self.comm.iallreduce(send, recv, what) }.map_err(CollFault::Net)?;
        let Some(request) = begun else { return Ok(false) };
        self.under_way[step.slot()] = (request, header);
        self.looking.0.advance();
        self.looking.1.advance();
        Ok(true)
    }

    fn post_check(&mut self, op: CollOp) -> Result<bool, CollFault> {
        self.sums.ours = u64::from(op.tag);
        let registration = self.sums_registration;
        let send = CollPart { start: (&raw mut self.sums.ours).cast(), registration };
        let recv = CollPart { start: (&raw mut self.sums.all).cast(), registration };
        let (dtype, op) = CHECKED;
        // SAFETY: both are registered words, which nobody accesses until the check completes.
        let begun = unsafe { self.comm.iallreduce(send, recv, Reduction { count: 1, dtype, op }) };
        let begun = begun.map_err(CollFault::Net)?;
        self.check = begun.map_or(Check::Due, Check::Under);
        Ok(begun.is_some())
    }

    fn look_at_check(&mut self, op: CollOp, moved: &mut usize) -> Result<(), CollFault> {
        let Check::Under(request) = self.check else { return Ok(()) };
        if self.comm.test(request).map_err(CollFault::Net)?.is_none() {
            return Ok(());
        }
        // SAFETY: the request is complete. The network wrote the word, which the compiler cannot know.
        let sum = unsafe { (&raw const self.sums.all).read_volatile() };
        if sum != u64::from(op.tag) * u64::from(self.head.count) {
            return Err(CollFault::Mismatch { op, sum });
        }
        self.check = Check::Passed;
        *moved += 1;
        Ok(())
    }

    /// Publishes the oldest result if it has arrived. Returns whether it did.
    fn publish_next(&mut self) -> Result<bool, CollFault> {
        let step = self.ending.0.step();
        if !matches!(self.check, Check::Passed) || step == self.looking.0.step() {
            return Ok(false);
        }
        let (request, header) = self.under_way[step.slot()];
        if self.comm.test(request).map_err(CollFault::Net)?.is_none() {
            return Ok(false);
        }
        self.ending.1.publish(header);
        self.ending.0.release();
        Ok(true)
    }
}

impl fmt::Display for CollFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollFault::Net(error) => error.fmt(f),
            CollFault::Mismatch { op, sum } => {
                write!(f, "the heads' tags add up to {sum:#x}, where each was to have {:#x}", op.tag)
            }
        }
    }
}
