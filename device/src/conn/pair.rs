//! The buffers that a pair of processors hand to and fro ([`oxccl_shared::fifo::PingPong`]).

use super::end::words;
use super::{PING_PONG_MIN_BYTES, RecvConn, SendConn};
use crate::gpu::cpu::maker;
use core::cell::Cell;
use oxccl_shared::abi::{ConnEnd, Step};
use oxccl_shared::fifo::{BUFFERS, ConsumerCursor, OUTBOX_BUFFERS, PingPong, Place};
use std::sync::Arc;

/// Bytes of a connection's buffers, which lie behind it, if each has so many.
pub const fn buffers_bytes(buffer_bytes: usize) -> usize {
    BUFFERS * buffer_bytes
}

/// Bytes of a rank's outbox, if each of its buffers has so many.
pub const fn outbox_bytes(buffer_bytes: usize) -> usize {
    OUTBOX_BUFFERS * buffer_bytes
}

/// Whether long messages between two processors are faster in parts of half a MiB than in parts that stay in the sender's own cache. On AMD's the
/// reader then finds them in the cache that both share, which is nearer: 1 MiB each way takes 46 us instead of 55 on a Zen 4. On Intel's Xeons it
/// takes 150 to 190 instead of 130 (docs/measurements/2026-11-29-cpu-odd-lengths.md).
pub fn long_parts_pay() -> bool {
    maker::is_made_by(maker::AMD)
}

/// The first of as few parts as fit buffers of so many bytes. Equal ones: a buffer is in our caches as far as the last message in it reached.
/// None that a buffer does not take.
const fn equal_part(left: usize, buffer_bytes: usize) -> usize {
    const GRAIN_BYTES: usize = 128;
    if left <= buffer_bytes {
        return left;
    }
    let part = left.div_ceil(left.div_ceil(buffer_bytes)).next_multiple_of(GRAIN_BYTES);
    if part >= PING_PONG_MIN_BYTES && part < buffer_bytes { part } else { buffer_bytes }
}

/// The outboxes of a pair's ranks, as one of the two sees them: [`OUTBOX_BUFFERS`] buffers each.
#[derive(Clone, Copy, Debug)]
pub struct Outboxes {
    /// The first buffer of this rank's, which is that of all its connections.
    pub own: *mut u8,
    /// The first of the peer's.
    pub theirs: *mut u8,
    /// Bytes of a buffer.
    pub len_bytes: usize,
}

/// A pair's buffers, as one of its ranks sees them.
struct Buffers {
    hands: PingPong,
    /// The first of the connection on which this rank sends.
    outgoing: *mut u8,
    incoming: *mut u8,
    len_bytes: usize,
    /// Whether this rank sends in buffers. It receives in them in any case.
    is_used: bool,
    /// Where the message lies that is being sent.
    chosen: Cell<Place>,
    outboxes: Option<Outboxes>,
    /// The step of this connection that each buffer of our outbox was in use for last.
    outbox_steps: [Cell<Option<Step>>; OUTBOX_BUFFERS],
}

// SAFETY: the memory is shared by design; who may touch a buffer follows from `hands` and `outbox_steps`, which one thread uses at a time, that of
// both ends.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

/// What a connection has of it.
#[derive(Default)]
pub(super) struct Pair {
    buffers: Option<Arc<Buffers>>,
}

/// Gives a rank's two connections with one peer, of one layout, their buffers of `len_bytes`, a slot of Simple at least. Before the first
/// message; both ranks do it with the same length, whether they send in them or not.
///
/// # Safety
/// 1. Behind the `total_bytes` of either connection's layout is as much memory as [`buffers_bytes`] says, which lives as long. Nobody else
///    uses it, but the peer in the same way.
/// 2. So do the buffers of `outboxes`. Nobody stores to this rank's but this rank, by one thread at a time, over connections that have all got it
///    here and are in one list ([`Conns::send`](super::Conns::send)).
pub unsafe fn share_buffers(
    send: &mut SendConn,
    recv: &mut RecvConn,
    len_bytes: usize,
    is_used: bool,
    outboxes: Option<Outboxes>,
) {
    let behind =
        |end: &ConnEnd| end.consumer_side.cast_mut().cast::<u8>().wrapping_add(end.layout.total_bytes());
    let [outgoing, incoming] = [behind(&send.end), behind(&recv.end)];
    assert_eq!(send.end.layout, recv.end.layout, "both ranks compute where buffers lie");
    assert!(len_bytes >= send.end.layout.simple_slot_bytes as usize, "what fits a slot fits a buffer");
    let buffers = Arc::new(Buffers {
        hands: PingPong::new(),
        outgoing,
        incoming,
        len_bytes,
        is_used,
        chosen: Cell::default(),
        outboxes,
        outbox_steps: Default::default(),
    });
    send.pair.buffers = Some(buffers.clone());
    recv.pair.buffers = Some(buffers);
}

impl Buffers {
    /// The buffer of a place that is named by the connection on which this rank sends. An outbox is the peer's.
    fn at(&self, place: Place) -> Option<*mut u8> {
        let nth_of = |first: *mut u8, index: u8| Some(nth_buffer(first, self.len_bytes, index));
        match place {
            Place::Slot => None,
            Place::Own(index) => nth_of(self.outgoing, index),
            Place::Opposite(index) => nth_of(self.incoming, index),
            Place::Outbox(index) => {
                self.outboxes.map(|outboxes| nth_buffer(outboxes.theirs, outboxes.len_bytes, index))
            }
        }
    }
}

fn nth_buffer(first: *mut u8, len_bytes: usize, index: u8) -> *mut u8 {
    first.wrapping_add(usize::from(index) * len_bytes)
}

impl Pair {
    /// Where the producer fills the next message, if not in its slot. It is published there.
    #[inline]
    pub fn choose(&self, len_bytes: usize) -> Option<*mut u8> {
        let buffers = self.buffers.as_ref()?;
        let fits = (PING_PONG_MIN_BYTES..=buffers.len_bytes).contains(&len_bytes);
        let place = if buffers.is_used && fits { buffers.hands.next() } else { Place::Slot };
        buffers.chosen.set(place);
        buffers.at(place)
    }

    /// How many of the bytes that are left of a message come next, if they go in a buffer.
    #[inline]
    pub fn part(&self, left: usize) -> Option<usize> {
        let buffers = self.buffers.as_ref()?;
        let part = equal_part(left, buffers.len_bytes);
        (buffers.is_used && part >= PING_PONG_MIN_BYTES && buffers.hands.next() != Place::Slot)
            .then_some(part)
    }

    /// As [`Self::part`] of the producer, of the message of the next step, which has come.
    #[inline]
    pub fn part_found(&self, end: &ConnEnd, cursor: ConsumerCursor, left: usize) -> Option<usize> {
        let buffers = self.buffers.as_ref()?;
        let is_in_buffer = cursor.next_line(words(end)).place() != Place::Slot;
        is_in_buffer.then(|| equal_part(left, buffers.len_bytes))
    }

    /// Whether messages of so many bytes may lie in our outbox.
    #[inline]
    pub fn has_outbox(&self, len_bytes: usize) -> bool {
        let outboxes =
            self.buffers.as_ref().filter(|buffers| buffers.is_used).and_then(|buffers| buffers.outboxes);
        outboxes.is_some_and(|outboxes| len_bytes <= outboxes.len_bytes)
    }

    /// The step of this connection that buffer `index` of our outbox was last used for.
    #[inline]
    pub fn outbox_step(&self, index: usize) -> Option<Step> {
        self.buffers.as_ref()?.outbox_steps[index].get()
    }

    /// The message of `step`, which is about to be filled, lies in buffer `index` of our outbox.
    #[inline]
    pub fn choose_outbox(&self, index: usize, step: Step) -> Option<*mut u8> {
        let buffers = self.buffers.as_ref()?;
        buffers.chosen.set(Place::Outbox(index as u8));
        buffers.outbox_steps[index].set(Some(step));
        buffers.outboxes.map(|outboxes| nth_buffer(outboxes.own, outboxes.len_bytes, index as u8))
    }

    /// Whether the message that is being sent lies in a buffer.
    #[inline]
    pub fn has_chosen(&self) -> bool {
        self.buffers.as_ref().is_some_and(|buffers| buffers.chosen.get() != Place::Slot)
    }

    /// The message is published: where it lies.
    #[inline]
    pub fn give(&self) -> Place {
        let Some(buffers) = &self.buffers else { return Place::Slot };
        let place = buffers.chosen.replace(Place::Slot);
        buffers.hands.give(place);
        place
    }

    /// Where the message of the next step has come, if not in its slot.
    #[inline]
    pub fn find(&self, end: &ConnEnd, cursor: ConsumerCursor) -> Option<*mut u8> {
        let buffers = self.buffers.as_ref()?;
        buffers.at(cursor.next_line(words(end)).place().seen_from_the_other())
    }

    /// Whether the message of the next step has come in the producer's outbox.
    #[inline]
    pub fn is_in_outbox(&self, end: &ConnEnd, cursor: ConsumerCursor) -> bool {
        self.buffers.is_some() && matches!(cursor.next_line(words(end)).place(), Place::Outbox(_))
    }

    /// The message of the next step has been read.
    #[inline]
    pub fn take(&self, end: &ConnEnd, cursor: ConsumerCursor) {
        if let Some(buffers) = &self.buffers {
            buffers.hands.take(cursor.next_line(words(end)).place());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_few_and_equal_to_a_grain() {
        // Two parts of 640 would go in slots.
        assert_eq!([1025, 1 << 10, 1].map(|left| equal_part(left, 1 << 10)), [1 << 10, 1 << 10, 1]);
        const BUFFER_BYTES: usize = 16 << 10;
        for len in (1..5 * BUFFER_BYTES).step_by(97).chain([BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES])
        {
            let (mut left, mut parts) = (len, Vec::new());
            while left > 0 {
                parts.push(equal_part(left, BUFFER_BYTES));
                left -= parts[parts.len() - 1];
            }
            assert_eq!(parts.len(), len.div_ceil(BUFFER_BYTES), "{len}: {parts:?}");
            let (least, most) = (*parts.iter().min().unwrap(), *parts.iter().max().unwrap());
            assert!(most <= BUFFER_BYTES && most - least < 128 * parts.len(), "{len}: {parts:?}");
        }
    }
}
