//! The two ends of connections as kernels hold them.
//!
//! All threads of a block hold the same ends and count the same steps; one of them also tells the peer
//! ([`Block::posts`](crate::gpu::Block::posts)).

use core::borrow::Borrow;
use oxccl_shared::abi::{ConnControl, ConnEnd, ConnLayout, Protocol, Rank, SlotHeader, Step};
use oxccl_shared::fifo::{ConnWords, ConsumerCursor, ProducerCursor};
use oxccl_shared::proto;

/// The producer's end of a connection. `E` is how it is held: by value, or by reference to where the host has put it.
pub struct SendConn<E: Borrow<ConnEnd> = ConnEnd> {
    end: E,
    cursor: ProducerCursor,
    /// Whether a proxy consumes it and an operation ends only when that has taken everything.
    pub is_streamed: bool,
}

/// The consumer's end of a connection.
pub struct RecvConn<E: Borrow<ConnEnd> = ConnEnd> {
    end: E,
    cursor: ConsumerCursor,
}

// SAFETY: an end is used by one thread at a time (its methods take `&mut self`), and the memory under it is shared by
// design: all concurrent access goes through `Word`s or is ordered by them.
unsafe impl Send for SendConn {}
// SAFETY: as for `SendConn`.
unsafe impl Send for RecvConn {}

/// Every connection of one channel of one rank. Algorithms name them by index.
pub struct Conns<'a, E: Borrow<ConnEnd> = ConnEnd> {
    /// To consumers.
    pub send: &'a mut [SendConn<E>],
    /// From producers.
    pub recv: &'a mut [RecvConn<E>],
}

/// Makes the words and slots of an end reachable.
fn words(end: &ConnEnd) -> ConnWords<'_> {
    // SAFETY: whoever made the `SendConn` or `RecvConn` promised that both blocks are live.
    let (producer_side, consumer_side) = unsafe { (&*end.producer_side, &*end.consumer_side) };
    ConnWords { producer_side, consumer_side }
}

#[inline]
fn slot(end: &ConnEnd, protocol: Protocol, step: Step) -> *mut u8 {
    let base = end.consumer_side.cast::<u8>().cast_mut();
    base.wrapping_add(proto::slot_offset(protocol, &end.layout, step.slot()))
}

impl SendConn {
    /// The producer's end of the connection whose whole block is at `base`.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and points to `layout.total_bytes()` bytes that started zeroed and outlive the end.
    /// 2. Nobody else is, or will be, this connection's producer.
    pub unsafe fn new(peer: Rank, base: *mut u8, layout: ConnLayout) -> Self {
        let end = ConnEnd::in_one(base.cast::<ConnControl>(), layout, peer);
        // SAFETY: obligations 1 and 2.
        unsafe { SendConn::resume(end, ProducerCursor::default()) }
    }
}

impl<E: Borrow<ConnEnd>> SendConn<E> {
    /// The producer's end as it was left at `cursor`.
    ///
    /// # Safety
    /// 1. Both blocks of `end` are live, 128-byte aligned and as large as its layout says, and outlive the connection.
    /// 2. Nobody else is this connection's producer, but the other threads of the block, which do as this one does.
    #[inline]
    pub unsafe fn resume(end: E, cursor: ProducerCursor) -> Self {
        SendConn { end, cursor, is_streamed: false }
    }

    /// Who consumes.
    #[inline]
    pub fn peer(&self) -> Rank {
        self.end.borrow().peer
    }

    /// Slot sizes.
    #[inline]
    pub fn layout(&self) -> &ConnLayout {
        &self.end.borrow().layout
    }

    /// The step that will be produced next.
    #[inline]
    pub fn step(&self) -> Step {
        self.cursor.step()
    }

    /// How far it is.
    #[inline]
    pub fn cursor(&self) -> ProducerCursor {
        self.cursor
    }

    /// Whether the slot of the current step is empty.
    #[inline]
    pub fn poll_credit(&mut self) -> bool {
        self.cursor.poll_credit(words(self.end.borrow()))
    }

    /// Goes to the next step; if `posts`, tells the consumer that the slot is full.
    #[inline]
    pub fn publish(&mut self, header: SlotHeader, posts: bool) {
        if posts {
            self.cursor.publish(words(self.end.borrow()), header);
        } else {
            self.cursor.advance();
        }
    }

    /// Goes to the next step; the slot's own lines have told the consumer.
    #[inline]
    pub fn advance(&mut self) {
        self.cursor.advance();
    }

    /// Whether the consumer has taken everything.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.cursor.is_drained(words(self.end.borrow()))
    }

    /// The slot of the current step.
    #[inline]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(self.end.borrow(), protocol, self.step())
    }
}

impl RecvConn {
    /// The consumer's end of the connection whose whole block is at `base`.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and points to `layout.total_bytes()` bytes that started zeroed and outlive the end.
    /// 2. Nobody else is, or will be, this connection's consumer.
    pub unsafe fn new(peer: Rank, base: *mut u8, layout: ConnLayout) -> Self {
        let end = ConnEnd::in_one(base.cast::<ConnControl>(), layout, peer);
        // SAFETY: obligations 1 and 2.
        unsafe { RecvConn::resume(end, ConsumerCursor::default()) }
    }
}

impl<E: Borrow<ConnEnd>> RecvConn<E> {
    /// The consumer's end as it was left at `cursor`.
    ///
    /// # Safety
    /// 1. Both blocks of `end` are live, 128-byte aligned and as large as its layout says, and outlive the connection.
    /// 2. Nobody else is this connection's consumer, but the other threads of the block, which do as this one does.
    #[inline]
    pub unsafe fn resume(end: E, cursor: ConsumerCursor) -> Self {
        RecvConn { end, cursor }
    }

    /// Who produces.
    #[inline]
    pub fn peer(&self) -> Rank {
        self.end.borrow().peer
    }

    /// Slot sizes.
    #[inline]
    pub fn layout(&self) -> &ConnLayout {
        &self.end.borrow().layout
    }

    /// The step that will be consumed next.
    #[inline]
    pub fn step(&self) -> Step {
        self.cursor.step()
    }

    /// How far it is.
    #[inline]
    pub fn cursor(&self) -> ConsumerCursor {
        self.cursor
    }

    /// The header of the next slot, if it has been published (Simple).
    #[inline]
    pub fn poll(&mut self) -> Option<SlotHeader> {
        self.cursor.poll(words(self.end.borrow()))
    }

    /// Goes to the next step; if `posts`, gives the slot back.
    #[inline]
    pub fn release(&mut self, posts: bool) {
        if posts {
            self.cursor.release(words(self.end.borrow()));
        } else {
            self.cursor.advance();
        }
    }

    /// The slot of the current step.
    #[inline]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(self.end.borrow(), protocol, self.step())
    }
}
