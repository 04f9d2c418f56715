//! What the tests of a link need: kernels' ends of a block, and a stream worse than any network.

use super::block::Block;
use super::send::Sender;
use crate::mem::Segment;
use crate::net::io::{Piece, StreamIo};
use oxccl_shared::abi::{ConnLayout, Protocol, SlotHeader, Step};
use oxccl_shared::fifo::{StepConsumer, StepProducer, split};
use oxccl_shared::proto::{self, ll, ll128};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ptr::NonNull;

/// Slots of all three kinds that are smaller and larger than the receiver's stage.
pub(super) const LAYOUT: ConnLayout =
    ConnLayout { ll_slot_bytes: 8192, ll128_slot_bytes: 4096 + 128, simple_slot_bytes: 16384 };

/// A connection block and its memory. Leaked: tests are short, and a `'static` block suits threads.
pub(super) fn block(layout: ConnLayout) -> Block<'static> {
    let segment: &'static Segment = Box::leak(Box::new(Segment::private(layout.total_bytes()).unwrap()));
    // SAFETY: page aligned, zeroed, long enough, never unmapped.
    unsafe { Block::new(NonNull::new(segment.base()).unwrap(), layout) }
}

/// One step's message: what a kernel would send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Message {
    pub(super) protocol: Protocol,
    pub(super) tag: u32,
    pub(super) payload: Vec<u8>,
}

impl Message {
    /// A message of recognisable bytes that fits into a slot.
    pub(super) fn new(protocol: Protocol, tag: u32, len: usize, layout: &ConnLayout) -> Self {
        let len = len.min(proto::payload_bytes(protocol, layout));
        let payload = (0..len).map(|i| (i as u32 * 31).wrapping_add(tag) as u8).collect();
        Message { protocol, tag, payload }
    }

    fn header(&self) -> SlotHeader {
        SlotHeader { tag: self.tag, len_bytes: self.payload.len() as u32 }
    }
}

/// The payload as the words of line protocols, zeroes behind its end.
fn words(payload: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    };
    payload.chunks(8).map(word).collect()
}

/// A kernel that sends.
pub(super) struct Writer {
    block: Block<'static>,
    producer: StepProducer<'static>,
}

impl Writer {
    pub(super) fn new(block: Block<'static>) -> Self {
        Writer { block, producer: split(block.control()).0 }
    }

    pub(super) fn step(&self) -> Step {
        self.producer.step()
    }

    /// Fills the next slot, if it is empty.
    pub(super) fn send(&mut self, message: &Message) -> bool {
        if !self.producer.poll_credit() {
            return false;
        }
        let step = self.producer.step();
        let slot = self.block.slot(message.protocol, step);
        // SAFETY: the slot is empty and so the producer's; the message fits; lines are aligned as their types want.
        unsafe {
            match message.protocol {
                Protocol::Simple => slot.copy_from(message.payload.as_ptr(), message.payload.len()),
                Protocol::LL => {
                    let lines = slot.cast::<ll::LlLine>();
                    (*lines).store_header(message.header(), ll::flag(step));
                    for (i, word) in words(&message.payload).into_iter().enumerate() {
                        (*lines.add(i + 1)).store(word, ll::flag(step));
                    }
                }
                Protocol::LL128 => {
                    let lines = slot.cast::<ll128::Ll128Line>();
                    (*lines).store_header(message.header(), ll128::flag(step));
                    for (i, words) in words(&message.payload).chunks(ll128::DATA_WORDS).enumerate() {
                        (*lines.add(i + 1)).store(words, ll128::flag(step));
                    }
                }
            }
        }
        proto::publish(message.protocol, &mut self.producer, message.header());
        true
    }

    /// As [`Self::send`] of a Simple message, whose bytes stay in `memory`.
    pub(super) fn lend(&mut self, message: &Message, memory: &[u8], sender: &mut Sender<'static>) {
        assert!(self.producer.poll_credit());
        let slot = self.block.slot(Protocol::Simple, self.producer.step());
        // SAFETY: the slot is empty and published below; the test keeps `memory`, and returns it before it writes there.
        assert!(unsafe { sender.lend(slot, memory.as_ptr(), memory.len()) });
        self.producer.publish(message.header());
    }

    /// Publishes the next slot as it is, if it is empty: a kernel that costs nothing.
    pub(super) fn publish_unfilled(&mut self, header: SlotHeader) {
        if self.producer.poll_credit() {
            self.producer.publish(header);
        }
    }
}

/// A kernel that receives.
pub(super) struct Reader {
    block: Block<'static>,
    consumer: StepConsumer<'static>,
}

impl Reader {
    pub(super) fn new(block: Block<'static>) -> Self {
        Reader { block, consumer: split(block.control()).1 }
    }

    /// The step that is emptied next.
    pub(super) fn step(&self) -> Step {
        self.consumer.step()
    }

    /// The first byte of the Simple slot that is emptied next.
    pub(super) fn simple_slot(&self) -> *mut u8 {
        self.block.slot(Protocol::Simple, self.consumer.step())
    }

    /// Empties the next slot, if it is full. Line slots are read by their flags, as a kernel does.
    pub(super) fn recv(&mut self, protocol: Protocol) -> Option<Message> {
        let step = self.consumer.step();
        // SAFETY: the block vouches for the memory.
        let header =
            unsafe { proto::ready(protocol, self.block.layout(), self.block.base(), &mut self.consumer) }?;
        let slot = self.block.slot(protocol, step);
        let len = header.len_bytes as usize;
        // SAFETY: the slot is full and so the consumer's; its lines are aligned as their types want.
        let mut payload: Vec<u8> = unsafe {
            match protocol {
                Protocol::Simple => std::slice::from_raw_parts(slot, len).to_vec(),
                Protocol::LL => {
                    let lines = slot.cast::<ll::LlLine>();
                    let word = |i| (*lines.add(i + 1)).load(ll::flag(step)).unwrap().to_le_bytes();
                    (0..len.div_ceil(8)).flat_map(word).collect()
                }
                Protocol::LL128 => {
                    let lines = slot.cast::<ll128::Ll128Line>();
                    let line = |i| {
                        let mut words = [0; ll128::DATA_WORDS];
                        assert!((*lines.add(i + 1)).load(&mut words, ll128::flag(step)));
                        words.map(u64::to_le_bytes).concat()
                    };
                    (0..len.div_ceil(ll128::DATA_BYTES)).flat_map(line).collect()
                }
            }
        };
        payload.truncate(len);
        self.consumer.release();
        Some(Message { protocol, tag: header.tag, payload })
    }
}

impl Reader {
    /// Gives the next Simple slot back unread, if it is full.
    pub(super) fn discard(&mut self) -> bool {
        let is_full = self.consumer.poll().is_some();
        if is_full {
            self.consumer.release();
        }
        is_full
    }
}

/// A stream in memory that moves at most so many bytes at a time as its script says; zero is `AGAIN`. When the script has
/// ended it starts over.
pub(super) struct Pipe {
    pub(super) bytes: VecDeque<u8>,
    pub(super) is_closed: bool,
    script: Vec<usize>,
    turn: usize,
    /// How often either end has called.
    pub(super) calls: usize,
}

impl Pipe {
    pub(super) fn new(script: Vec<usize>) -> Self {
        Pipe { bytes: VecDeque::new(), is_closed: false, script, turn: 0, calls: 0 }
    }

    fn allowed(&mut self) -> Result<usize, Errno> {
        self.turn += 1;
        match self.script[(self.turn - 1) % self.script.len()] {
            0 => Err(Errno::AGAIN),
            n => Ok(n),
        }
    }
}

impl StreamIo for Pipe {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        self.calls += 1;
        if self.is_closed {
            return Err(Errno::PIPE);
        }
        let allowed = self.allowed()?;
        let before = self.bytes.len();
        for piece in pieces {
            let n = piece.iov_len.min(allowed - (self.bytes.len() - before));
            // SAFETY: the caller's pieces are readable.
            self.bytes.extend(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), n) });
        }
        Ok(self.bytes.len() - before)
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        self.calls += 1;
        if self.bytes.is_empty() {
            return if self.is_closed { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let allowed = self.allowed()?;
        let mut moved = 0;
        for piece in pieces {
            let n = piece.iov_len.min(allowed - moved).min(self.bytes.len());
            for (i, byte) in self.bytes.drain(..n).enumerate() {
                // SAFETY: the caller's pieces are writable.
                unsafe { piece.iov_base.cast::<u8>().add(i).write(byte) };
            }
            moved += n;
        }
        Ok(moved)
    }
}
