//! The end of in-network reduction: the consumer of the block that a head's kernel fills and the producer of the
//! block that it empties, with the network between them.
//!
//! ```text
//! kernel fills a slot   -> posted       iallreduce from that slot into the same one of the other block,
//!                                       or ireduce_scatter or iallgather of the block whose turn it is
//! test, in order        -> published    tail of the one block, head of the other
//! ```
//! Networks match operations by order and do not detect heads that run different operations. So each operation of a
//! communicator begins with a *check*: a reduction of one number, the sum of all heads' tags. If the tags differ, at
//! least one is not the mean; its head sees a sum that differs from its own tag times the number of heads. No result
//! of the operation is published to the kernel before. The check is sent right before the first slot, so it costs a
//! message and no wait.

use super::block::{BlockRegistrations, ProxyBlock};
use super::order::{Elements, Keep};
use crate::net::coll::{CollComm, CollPart, Head, Reduction, Window};
use crate::net::{NetError, NetMemory, NetMemoryKind, Registration, Request};
use core::fmt;
use core::iter::Peekable;
use oxccl_shared::abi::{ConnLayout, DataType, Func, RedOp, SlotHeader, Step};
use oxccl_shared::algo::collnet::Blocks;
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
    /// What the network does with them.
    pub moves: Moves,
    /// Its slots; `u64::MAX` where whoever begins the next operation knows that all of this one's have been published.
    pub steps: u64,
}

/// What the network does with an operation's slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moves {
    /// Each is reduced into the same one of every head.
    Reduce,
    /// Each is of one rank's block, in the order of [`Blocks`]: it is reduced to the head of that rank's host.
    Scatter(Cut),
    /// As above: the head of that rank's host sends it to all.
    Gather(Cut),
}

/// How an operation's blocks are divided among slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Elements of each block that go this way.
    pub part_elems: u64,
    /// Elements of a slot.
    pub slice_elems: u32,
}

/// What an order says to an end of a network that reduces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduced {
    /// Its elements and the network's operator.
    pub elements: Elements,
    /// What the network does with slots.
    pub moves: Moves,
}

impl Moves {
    /// Of a collective that goes through the network.
    pub fn of(func: Func, cut: Cut) -> Moves {
        match func {
            Func::ReduceScatter => Moves::Scatter(cut),
            Func::AllGather => Moves::Gather(cut),
            _ => Moves::Reduce,
        }
    }

    fn cut(self) -> Option<Cut> {
        match self {
            Moves::Reduce => None,
            Moves::Scatter(cut) | Moves::Gather(cut) => Some(cut),
        }
    }
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
    /// The head's own kernel filled a slot with other bytes than the operation has there, or the slot has no room for them.
    Slot {
        /// Bytes in the slot.
        found: u32,
        /// Bytes that the operation has there.
        expected: usize,
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

/// One slot's operation.
struct Turn {
    /// Bytes that this head gives, and that it gets.
    bytes: [usize; 2],
    /// The block that it is of, and so the window; none for an all-reduce.
    window: Option<Window>,
}

/// A head's end.
pub struct CollEnd {
    // Dropped before the memory that it may still be using.
    comm: Box<dyn CollComm>,
    head: Head,
    /// The head of each rank's host.
    head_of: Box<[u32]>,
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
    /// What follows of the operation's blocks.
    blocks: Option<Peekable<Blocks>>,
    /// The first step of the operation.
    first: Step,
    check: Check,
    failed: Option<CollFault>,
    _memory: Keep,
}

impl CollEnd {
    /// Connects the block `up`, which the kernel fills, and `down`, which it empties, both in host memory that
    /// `memory` keeps alive. `head_of` is the head of each rank's host.
    ///
    /// # Errors
    /// The network refuses to register the memory.
    ///
    /// # Safety
    /// 1. This is the only consumer of `up` and the only producer of `down`, and `memory` keeps both alive.
    pub unsafe fn new(
        mut comm: Box<dyn CollComm>,
        (head, head_of): (Head, Box<[u32]>),
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
            head_of,
            up,
            down,
            slots,
            sums,
            sums_registration,
            looking: (split_over(up_words).1, split_over(down_words).0),
            ending: (split_over(up_words).1, split_over(down_words).0),
            under_way: [(Request(0), SlotHeader::default()); STEPS],
            op: None,
            blocks: None,
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
        self.blocks = op.moves.cut().filter(|cut| cut.slice_elems > 0).map(|cut| {
            Blocks::new(0..cut.part_elems as usize, cut.slice_elems as usize, self.head_of.len() as u32)
                .peekable()
        });
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
        let turn = self.turn(op, header)?;
        let Some(request) = self.post(op, step, &turn)? else { return Ok(false) };
        let got = SlotHeader { len_bytes: turn.bytes[1] as u32, ..header };
        self.under_way[step.slot()] = (request, got);
        if let Some(blocks) = &mut self.blocks {
            blocks.next();
        }
        self.looking.0.advance();
        self.looking.1.advance();
        Ok(true)
    }

    /// What is done with the next slot, which has this header.
    fn turn(&mut self, op: CollOp, header: SlotHeader) -> Result<Turn, CollFault> {
        let found = header.len_bytes as usize;
        let wrong = |expected| CollFault::Slot { found: header.len_bytes, expected };
        let turn = match op.moves {
            Moves::Reduce => Turn { bytes: [found; 2], window: None },
            Moves::Scatter(_) | Moves::Gather(_) => {
                let step = self.blocks.as_mut().and_then(Peekable::peek).ok_or(wrong(0))?;
                let len_bytes = step.elems.len() * op.elements.dtype.size_bytes();
                let owner = self.head_of[step.owner.index()];
                let mine = if owner == self.head.index { len_bytes } else { 0 };
                let scatters = matches!(op.moves, Moves::Scatter(_));
                let bytes = if scatters { [len_bytes, mine] } else { [mine, len_bytes] };
                Turn { bytes, window: Some(Window::of_head(owner, len_bytes)) }
            }
        };
        let [given, longest] = [turn.bytes[0], turn.bytes[0].max(turn.bytes[1])];
        match () {
            () if given != found => Err(wrong(given)),
            () if longest > self.layout().simple_slot_bytes as usize => Err(wrong(longest)),
            () => Ok(turn),
        }
    }

    /// Starts it; none if it cannot start now.
    fn post(&mut self, op: CollOp, step: Step, turn: &Turn) -> Result<Option<Request>, CollFault> {
        let part = |block: &ProxyBlock, slots: &BlockRegistrations| CollPart {
            start: block.counted(step),
            registration: slots.counted(),
        };
        let (send, recv) = (part(&self.up, &self.slots[0]), part(&self.down, &self.slots[1]));
        let Elements { dtype, op: operator } = op.elements;
        let begun = match (turn.window, op.moves) {
            // SAFETY: both are slots of registered blocks, at least as long as what is sent and received: both blocks have
            // the kernel's layout, and `turn` has compared. The one is full and not released before the request completes,
            // the other empty and not published before.
            (Some(window), Moves::Scatter(_)) => unsafe {
                self.comm.ireduce_scatter(send, recv, (dtype, operator), window)
            },
            // SAFETY: as above.
            (Some(window), _) => unsafe { self.comm.iallgather(send, recv, window) },
            (None, _) => {
                let count = turn.bytes[0] / dtype.size_bytes();
                // SAFETY: as above.
                unsafe { self.comm.iallreduce(send, recv, Reduction { count, dtype, op: operator }) }
            }
        };
        begun.map_err(CollFault::Net)
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
            CollFault::Slot { found, expected } => {
                write!(
                    f,
                    "the head's kernel gave a slot of {found} bytes to the network, where the operation has {expected}"
                )
            }
        }
    }
}
