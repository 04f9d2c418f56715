//! The memory of one connection: from one producer rank to one consumer rank over one channel.
//!
//! ```text
//! offset 0                     ConnControl (12 lines of 128 bytes)
//! ConnLayout::ll_offset        LL     8 slots of ll_slot_bytes
//! ConnLayout::ll128_offset     LL128  4 slots of ll128_slot_bytes
//! ConnLayout::simple_offset    Simple 8 slots of simple_slot_bytes
//! ```
//! Behind it may be ping-pong buffers of a pair of processors ([`crate::fifo::PingPong`]).
//! The consumer owns the memory; the producer maps it. All three protocols share one step counter: step `s` uses slot
//! `s % n` of the buffer of the operation's protocol, which has `n` slots ([`Protocol::slots`]).
//!
//! Simple slots may be elsewhere, contiguous from another address ([`ConnEnd::counted`]): where the other end of the
//! connection is a NIC with GPUDirect RDMA, while control words and lines belong to the proxy.

use super::{Answer, Protocol};
use crate::fifo::STEPS;
use crate::sync::{Line128, Sys, Word};

/// Precedes the payload of every slot: the operation's tag, and the length of the payload. If the tag differs from
/// the consumer's own, the peer called another operation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotHeader {
    /// Digest of the operation (see `device`'s work descriptor): if it differs between the ends, so do the calls.
    pub tag: u32,
    /// Payload bytes in this slot.
    pub len_bytes: u32,
}

impl SlotHeader {
    /// Both fields in one word, so that one store publishes them.
    #[inline]
    pub const fn to_word(self) -> u64 {
        (self.tag as u64) << 32 | self.len_bytes as u64
    }

    /// The inverse of [`Self::to_word`].
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        SlotHeader { tag: (word >> 32) as u32, len_bytes: word as u32 }
    }
}

/// The control words of a connection, one writer per line.
#[repr(C)]
#[derive(Default)]
pub struct ConnControl {
    /// Steps published under Simple. Writer: the producer.
    pub tail: Line128<Word<u64, Sys>>,
    /// Steps consumed, under any protocol. The producer may be as many ahead as its next step's protocol has slots. Writer: the consumer.
    pub head: Line128<Word<u64, Sys>>,
    /// The header of each Simple slot ([`SlotHeader::to_word`]), written before `tail`. Writer: the producer.
    pub headers: Line128<[Word<u64, Sys>; STEPS]>,
    /// The same of each Simple slot in one line, in place of `tail` and `headers`, where both ends are processors. Writer: the producer.
    pub lines: [SlotLine; STEPS],
    /// Where a long message goes, between GPUs. Writer: the consumer.
    pub answer: Line128<Answer>,
}

/// All that announces a Simple slot between processors, and a short message itself: of up to 48 bytes one line of a cache travels instead
/// of three, of longer ones a pair of lines, which processors fetch together.
#[repr(C, align(128))]
#[derive(Default)]
pub struct SlotLine {
    /// Steps published when the slot was published last, and where its message lies ([`crate::fifo::Place`]).
    pub tail: Word<u64, Sys>,
    /// The slot's header, written before `tail`.
    pub header: Word<u64, Sys>,
    /// The payload, if it is no longer than this, written before `tail`. Never touched as words.
    pub payload: [Word<u64, Sys>; SlotLine::PAYLOAD_BYTES / 8],
}

impl SlotLine {
    /// The longest payload that has room in the line.
    pub const PAYLOAD_BYTES: usize = 112;
}

/// Sizes of a connection's three buffers, from which both ends compute the same offsets.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnLayout {
    /// Bytes of one LL slot: a multiple of 128.
    pub ll_slot_bytes: u32,
    /// Bytes of one LL128 slot: a multiple of 128.
    pub ll128_slot_bytes: u32,
    /// Bytes of one Simple slot: a multiple of 128.
    pub simple_slot_bytes: u32,
}

impl ConnLayout {
    /// Offset of the LL slots.
    pub const fn ll_offset(&self) -> usize {
        size_of::<ConnControl>()
    }
    /// Offset of the LL128 slots.
    pub const fn ll128_offset(&self) -> usize {
        self.ll_offset() + Protocol::LL.slots() * self.ll_slot_bytes as usize
    }
    /// Offset of the Simple slots.
    pub const fn simple_offset(&self) -> usize {
        self.ll128_offset() + Protocol::LL128.slots() * self.ll128_slot_bytes as usize
    }
    /// Bytes of the whole connection: a multiple of 128 when the layout is valid.
    pub const fn total_bytes(&self) -> usize {
        self.simple_offset() + Protocol::Simple.slots() * self.simple_slot_bytes as usize
    }
    /// Whether every slot holds at least two lines and lies on a 128-byte line, and the whole stays under 16 MiB.
    pub const fn is_valid(&self) -> bool {
        let slots = [self.ll_slot_bytes, self.ll128_slot_bytes, self.simple_slot_bytes];
        let mut i = 0;
        while i < 3 {
            if slots[i] < 256 || !slots[i].is_multiple_of(128) || slots[i] > 2 << 20 {
                return false;
            }
            i += 1;
        }
        self.total_bytes() <= 16 << 20
    }
}

/// One end of a connection, as a kernel finds it in its device's memory. The addresses are valid on that device only:
/// an end never crosses a process or device border. The twin on the other side describes the same memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConnEnd {
    /// The block whose `head` the producer polls.
    pub producer_side: *const ConnControl,
    /// The block whose `tail` and `headers` the consumer polls, followed by the slots.
    pub consumer_side: *const ConnControl,
    /// Slot sizes.
    pub layout: ConnLayout,
    /// The rank at the other end.
    pub peer: super::Rank,
    /// The first Simple slot: on the consumer's side, as the layout says, or elsewhere.
    pub counted: *const u8,
}

impl ConnEnd {
    /// An end of a connection whose memory is one block at `block`.
    pub fn in_one(block: *const ConnControl, layout: ConnLayout, peer: super::Rank) -> ConnEnd {
        let counted = block.cast::<u8>().wrapping_add(layout.simple_offset());
        ConnEnd { producer_side: block, consumer_side: block, layout, peer, counted }
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<SlotHeader>() == 8 && align_of::<SlotHeader>() == 4);
    assert!(offset_of!(SlotHeader, tag) == 0 && offset_of!(SlotHeader, len_bytes) == 4);
    assert!(size_of::<ConnControl>() == 1536 && align_of::<ConnControl>() == 128);
    assert!(offset_of!(ConnControl, tail) == 0);
    assert!(offset_of!(ConnControl, head) == 128);
    assert!(offset_of!(ConnControl, headers) == 256);
    assert!(offset_of!(ConnControl, lines) == 384);
    assert!(offset_of!(ConnControl, answer) == 1408);
    assert!(size_of::<Answer>() == 24 && offset_of!(Answer, high) == 8 && offset_of!(Answer, tag) == 16);
    assert!(size_of::<SlotLine>() == 128 && align_of::<SlotLine>() == 128);
    assert!(offset_of!(SlotLine, tail) == 0);
    assert!(offset_of!(SlotLine, header) == 8);
    assert!(offset_of!(SlotLine, payload) == 16);
    assert!(size_of::<ConnLayout>() == 12 && align_of::<ConnLayout>() == 4);
    assert!(offset_of!(ConnLayout, ll_slot_bytes) == 0);
    assert!(offset_of!(ConnLayout, ll128_slot_bytes) == 4);
    assert!(offset_of!(ConnLayout, simple_slot_bytes) == 8);
    assert!(size_of::<ConnEnd>() == 40 && align_of::<ConnEnd>() == 8);
    assert!(offset_of!(ConnEnd, consumer_side) == 8);
    assert!(offset_of!(ConnEnd, layout) == 16);
    assert!(offset_of!(ConnEnd, peer) == 28);
    assert!(offset_of!(ConnEnd, counted) == 32);
};
