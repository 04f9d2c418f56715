//! The sending state machine: which bytes go next, and what their departure means.
//!
//! The bytes of a slot need not lie in the slot. A kernel that would only copy the user's input there lends it instead,
//! and the socket takes it from the user's memory: one copy less of the three on the way to the peer's slot.

use super::block::Block;
use super::error::Fault;
use super::frame::{FrameHeader, HEADER_BYTES};
use crate::net::bypass::Loans;
use crate::net::io::{StreamIo, piece, pieces_bytes};
use oxccl_shared::abi::{Protocol, Step};
use oxccl_shared::fifo::{STEPS, StepConsumer, split};
use oxccl_shared::proto;
use rustix::io::Errno;
use std::ops::Range;

/// Consumes a block's slots and makes frames of them.
pub(super) struct Sender<'m> {
    block: Block<'m>,
    consumer: StepConsumer<'m>,
    frame: Option<Outgoing>,
    loans: Loans,
}

/// A frame of which some bytes have not left yet.
struct Outgoing {
    header: [u8; HEADER_BYTES],
    body: *const u8,
    body_bytes: usize,
    /// Of header and body together.
    sent_bytes: usize,
}

// SAFETY: `body` points into the block, which is Send, or to lent bytes, which their owner says are readable.
unsafe impl Send for Outgoing {}

impl<'m> Sender<'m> {
    pub(super) fn new(block: Block<'m>) -> Self {
        Sender { block, consumer: split(block.control()).1, frame: None, loans: Loans::default() }
    }

    /// Has the Simple slot at `slot` stand for `len_bytes` at `body`. Nothing happens and the answer is no if that is not the
    /// start of a slot of this block, or the bytes are better copied.
    ///
    /// # Safety
    /// 1. The slot is empty, and is published next with a length of `len_bytes`.
    /// 2. From the next [`Self::progress`] or [`Self::return_loans`] until the slot has been released or the bytes returned,
    ///    they are readable and nobody writes them.
    pub(super) unsafe fn lend(&mut self, slot: *mut u8, body: *const u8, len_bytes: usize) -> bool {
        if !Loans::pay(body) {
            return false;
        }
        let Some(slot) = self.block.simple_slot(slot) else { return false };
        self.loans.begin(slot, body, len_bytes);
        true
    }

    /// Where the bytes of the Simple slot at `slot` are, if it is one of this block's and lent.
    pub(super) fn lent(&self, slot: *const u8) -> Option<*const u8> {
        if self.loans.is_empty() {
            return None;
        }
        self.loans.body(self.block.simple_slot(slot)?)
    }

    /// Copies lent bytes that lie in this range of addresses into their slots, for they are about to change.
    pub(super) fn return_loans(&mut self, memory: Range<usize>) {
        if self.loans.is_empty() {
            return;
        }
        while let Some((slot, body, len_bytes)) = self.loans.take_within(&memory) {
            let offset = proto::slot_offset(Protocol::Simple, self.block.layout(), slot);
            // SAFETY: a layout's slots lie within the block.
            let to = unsafe { self.block.base().add(offset) };
            // SAFETY: obligation 2 of `lend`: the body is readable. Obligation 1: its bytes are a slot's, which is full, so that
            // its producer leaves it alone until `release`.
            unsafe { to.copy_from_nonoverlapping(body, len_bytes) };
            if let Some(frame) = self.frame.as_mut().filter(|_| self.consumer.step().slot() == slot) {
                frame.body = to;
            }
        }
    }

    /// Forgets all loans. Whether there were any: then this end cannot go on.
    pub(super) fn forget_loans(&mut self) -> bool {
        let had_any = !self.loans.is_empty();
        self.loans = Loans::default();
        had_any
    }

    /// The step that leaves next, or is leaving.
    pub(super) fn step(&self) -> Step {
        self.consumer.step()
    }

    /// Writes slots until one is missing or the stream takes no more; at most as many as a block has, so that the
    /// caller's other links get their turn. Returns bytes written.
    pub(super) fn progress(&mut self, io: &mut impl StreamIo, protocol: Protocol) -> Result<usize, Fault> {
        let mut moved_bytes = 0;
        for _ in 0..STEPS {
            if self.frame.is_none() {
                self.frame = self.next_frame(protocol);
            }
            let Some(frame) = &mut self.frame else { break };
            let Some(written_bytes) = frame.write(io)? else { break };
            moved_bytes += written_bytes;
            if !frame.is_sent() {
                break;
            }
            self.frame = None;
            // The socket has its own copy now.
            self.loans.end(self.consumer.step().slot());
            self.consumer.release();
        }
        Ok(moved_bytes)
    }

    /// A frame of the next slot, if that is complete.
    fn next_frame(&mut self, protocol: Protocol) -> Option<Outgoing> {
        let layout = self.block.layout();
        // SAFETY: `Block::new` vouches for the memory; the consumer is that of the same block.
        let slot = unsafe { proto::ready(protocol, layout, self.block.base(), &mut self.consumer) }?;
        let step = self.consumer.step();
        Some(Outgoing {
            header: FrameHeader { protocol, step, slot }.encode(),
            body: self.loans.body(step.slot()).unwrap_or(self.block.slot(protocol, step)),
            body_bytes: proto::travel_bytes(protocol, layout, step, slot),
            sent_bytes: 0,
        })
    }
}

impl Outgoing {
    /// Writes what is left; `None` if the stream takes nothing now.
    fn write(&mut self, io: &mut impl StreamIo) -> Result<Option<usize>, Fault> {
        let header_sent = self.sent_bytes.min(HEADER_BYTES);
        let body_sent = self.sent_bytes - header_sent;
        let header = piece(self.header[header_sent..].as_ptr(), HEADER_BYTES - header_sent);
        // SAFETY: body_sent < body_bytes or both are equal, so this stays within the slot or the loan, or one past its end.
        let body = piece(unsafe { self.body.add(body_sent) }, self.body_bytes - body_sent);
        let pieces = [header, body];
        // Only what has bytes left: the kernel walks every piece it is given.
        let pieces = &pieces[usize::from(header.iov_len == 0)..2 - usize::from(body.iov_len == 0)];
        debug_assert!(pieces_bytes(pieces) > 0);
        // SAFETY: the header is ours; the slot is full, so its producer leaves it alone until `release`; lent bytes stay as they
        // are until then, or `return_loans` has moved them.
        match unsafe { io.write(pieces) } {
            Ok(written_bytes) => {
                self.sent_bytes += written_bytes;
                Ok(Some(written_bytes))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(Fault::from_errno(errno, self.sent_bytes > 0)),
        }
    }

    fn is_sent(&self) -> bool {
        self.sent_bytes == HEADER_BYTES + self.body_bytes
    }
}
