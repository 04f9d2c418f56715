//! The two ends of connections as kernels hold them.

use oxccl_shared::abi::{ConnControl, ConnLayout, Protocol, Rank, Step};
use oxccl_shared::fifo::{self, StepConsumer, StepProducer};
use oxccl_shared::proto;

/// The producer's end of a connection.
pub struct SendConn {
    /// Who consumes.
    pub peer: Rank,
    /// Slot sizes.
    pub layout: ConnLayout,
    /// Step counter and credits.
    pub fifo: StepProducer<'static>,
    /// Whether a proxy consumes it and an operation ends only when that has taken everything.
    pub is_streamed: bool,
    base: *mut u8,
}

/// The consumer's end of a connection.
pub struct RecvConn {
    /// Who produces.
    pub peer: Rank,
    /// Slot sizes.
    pub layout: ConnLayout,
    /// Step counter.
    pub fifo: StepConsumer<'static>,
    base: *mut u8,
}

// SAFETY: an end is used by one thread at a time (its methods take `&mut self`), and the memory under it is shared by
// design: all concurrent access goes through `Word`s or is ordered by them.
unsafe impl Send for SendConn {}
// SAFETY: as for `SendConn`.
unsafe impl Send for RecvConn {}

/// Every connection of one channel of one rank. Algorithms name them by index.
#[derive(Default)]
pub struct Conns {
    /// To consumers.
    pub send: Vec<SendConn>,
    /// From producers.
    pub recv: Vec<RecvConn>,
}

impl SendConn {
    /// The producer's end of the connection at `base`.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and points to `layout.total_bytes()` bytes that started zeroed and outlive the end.
    /// 2. Nobody else is, or will be, this connection's producer.
    pub unsafe fn new(peer: Rank, base: *mut u8, layout: ConnLayout) -> Self {
        // SAFETY: obligation 1: a zeroed, aligned, long-lived ConnControl.
        let control: &'static ConnControl = unsafe { &*base.cast() };
        SendConn { peer, layout, fifo: fifo::split(control).0, is_streamed: false, base }
    }

    /// The slot of the current step.
    #[inline]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(self.base, protocol, &self.layout, self.fifo.step())
    }
}

impl RecvConn {
    /// The consumer's end of the connection at `base`.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and points to `layout.total_bytes()` bytes that started zeroed and outlive the end.
    /// 2. Nobody else is, or will be, this connection's consumer.
    pub unsafe fn new(peer: Rank, base: *mut u8, layout: ConnLayout) -> Self {
        // SAFETY: obligation 1: a zeroed, aligned, long-lived ConnControl.
        let control: &'static ConnControl = unsafe { &*base.cast() };
        RecvConn { peer, layout, fifo: fifo::split(control).1, base }
    }

    /// The slot of the current step.
    #[inline]
    pub fn slot(&self, protocol: Protocol) -> *mut u8 {
        slot(self.base, protocol, &self.layout, self.fifo.step())
    }
}

#[inline]
fn slot(base: *mut u8, protocol: Protocol, layout: &ConnLayout, step: Step) -> *mut u8 {
    base.wrapping_add(proto::slot_offset(protocol, layout, step.slot()))
}
