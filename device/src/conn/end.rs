//! What the two ends of a connection have alike: their words and slots, and what both agree on.

#[cfg(feature = "cpu")]
use crate::traffic::Traffic;
#[cfg(feature = "cpu")]
use core::cell::Cell;
use core::mem::offset_of;
#[cfg(feature = "cpu")]
use oxccl_shared::abi::Offer;
use oxccl_shared::abi::{ConnControl, ConnEnd, ConnLayout, Protocol, Rank, SlotLine, Step};
use oxccl_shared::fifo::ConnWords;
use oxccl_shared::proto;

/// Where a rank on a CPU counts what goes over the connection; GPUs count nothing.
#[derive(Default)]
pub(super) struct Counter {
    #[cfg(feature = "cpu")]
    pub traffic: Option<std::sync::Arc<Traffic>>,
}

/// Whether both ends are processors, and nobody between them reads slots: then each slot of Simple is published in its line, which has a
/// short message too ([`SlotLine`]), and messages shorter than their slot are spread over it ([`proto::simple::spread_offset`]). Both ends
/// say the same.
#[derive(Default)]
pub(super) struct Spread {
    #[cfg(feature = "cpu")]
    pub is_on: Cell<bool>,
}

impl Spread {
    /// From the beginning of the slot of `step` to that of a message.
    #[inline(always)]
    pub fn offset(&self, _end: &ConnEnd, _step: Step, _len_bytes: usize) -> usize {
        #[cfg(feature = "cpu")]
        if self.is_on.get() {
            return proto::simple::spread_offset(_end.layout.simple_slot_bytes as usize, _step, _len_bytes);
        }
        0
    }

    #[inline(always)]
    pub fn is_on(&self) -> bool {
        #[cfg(feature = "cpu")]
        return self.is_on.get();
        #[cfg(not(feature = "cpu"))]
        false
    }

    /// Where a message of so many bytes lies, if it is in the line of its slot.
    #[inline(always)]
    pub fn in_line(&self, end: &ConnEnd, step: Step, len_bytes: usize) -> Option<*mut u8> {
        let is_short = self.is_on() && len_bytes <= SlotLine::PAYLOAD_BYTES;
        is_short.then(|| {
            let offset = offset_of!(ConnControl, lines)
                + step.slot() * size_of::<SlotLine>()
                + offset_of!(SlotLine, payload);
            end.consumer_side.cast_mut().cast::<u8>().wrapping_add(offset)
        })
    }
}

/// What a consumer says in the first slot of a new connection, before its producer has seen it: it reads the producer's memory.
#[cfg(feature = "cpu")]
pub(super) const INVITED: u64 = 0x6f78_6363_6c63_6d61;

/// References to the words of an end.
#[inline(always)]
pub(super) fn words(end: &ConnEnd) -> ConnWords<'_> {
    // SAFETY: the creator of the `SendConn` or `RecvConn` promised that both blocks are live.
    let (producer_side, consumer_side) = unsafe { (&*end.producer_side, &*end.consumer_side) };
    ConnWords { producer_side, consumer_side }
}

#[inline(always)]
pub(super) fn slot(end: &ConnEnd, protocol: Protocol, step: Step) -> *mut u8 {
    let at = |slot| proto::slot_offset(protocol, &end.layout, slot);
    let (base, offset) = match protocol.is_flagged() {
        true => (end.consumer_side.cast(), at(step.slot_of(protocol))),
        false => (end.counted, at(step.slot_of(protocol)) - at(0)),
    };
    base.cast_mut().wrapping_add(offset)
}

/// The offer that a Simple slot may hold.
#[cfg(feature = "cpu")]
pub(super) fn offer(end: &ConnEnd, step: Step) -> &Offer {
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
pub(super) unsafe fn load(end: *const ConnEnd) -> ConnEnd {
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
