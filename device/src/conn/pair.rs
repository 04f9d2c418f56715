//! The buffers that a pair of processors hand to and fro ([`oxccl_shared::fifo::PingPong`]).

use super::end::words;
use super::{PING_PONG_MIN_BYTES, RecvConn, SendConn};
use core::cell::Cell;
use oxccl_shared::abi::ConnEnd;
use oxccl_shared::fifo::{BUFFERS, ConsumerCursor, PingPong, Place};
use std::sync::Arc;

/// Bytes of a connection's buffers, which lie behind it, if it has slots of Simple of so many bytes.
pub const fn buffers_bytes(slot_bytes: usize) -> usize {
    BUFFERS * slot_bytes
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
}

// SAFETY: the memory is shared by design; who may touch a buffer follows from `hands`, which one thread uses at a time, that of both ends.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

/// What a connection has of it.
#[derive(Default)]
pub(super) struct Pair {
    buffers: Option<Arc<Buffers>>,
}

/// Gives a rank's two connections with one peer, of one layout, their buffers. Before the first message; both ranks do it, whether they send
/// in them or not.
///
/// # Safety
/// 1. Behind the `total_bytes` of either connection's layout is as much memory as [`buffers_bytes`] says, which lives as long. Nobody else
///    uses it, but the peer in the same way.
pub unsafe fn share_buffers(send: &mut SendConn, recv: &mut RecvConn, is_used: bool) {
    let behind =
        |end: &ConnEnd| end.consumer_side.cast_mut().cast::<u8>().wrapping_add(end.layout.total_bytes());
    let [outgoing, incoming] = [behind(&send.end), behind(&recv.end)];
    let len_bytes = send.end.layout.simple_slot_bytes as usize;
    assert_eq!(send.end.layout, recv.end.layout, "both ranks compute where buffers lie");
    let buffers = Arc::new(Buffers {
        hands: PingPong::new(),
        outgoing,
        incoming,
        len_bytes,
        is_used,
        chosen: Cell::default(),
    });
    send.pair.buffers = Some(buffers.clone());
    recv.pair.buffers = Some(buffers);
}

impl Buffers {
    /// The buffer of a place that is named by the connection on which this rank sends.
    fn at(&self, place: Place) -> Option<*mut u8> {
        let nth_of =
            |first: *mut u8, index: u8| Some(first.wrapping_add(usize::from(index) * self.len_bytes));
        match place {
            Place::Slot => None,
            Place::Own(index) => nth_of(self.outgoing, index),
            Place::Opposite(index) => nth_of(self.incoming, index),
        }
    }
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

    /// The message of the next step has been read.
    #[inline]
    pub fn take(&self, end: &ConnEnd, cursor: ConsumerCursor) {
        if let Some(buffers) = &self.buffers {
            buffers.hands.take(cursor.next_line(words(end)).place());
        }
    }
}
