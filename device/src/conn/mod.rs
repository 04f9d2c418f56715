//! Layer: device / conn.
//! Takes: a connection's memory, and where a kernel before this one left its cursors.
//! Gives: [`SendConn`] and [`RecvConn`], the two ends of connections as kernels hold them.
//! Never: waits, moves data.
//!
//! All threads of a block share its ends. Each part of an end has one writer among them ([`crate::gpu::Block`] names
//! the roles): the first worker counts the steps moved and caches what it has read of the peer's words, the poster
//! counts the steps published. The block's barriers separate a write from the others' reads, so plain cells suffice.

mod end;
#[cfg(feature = "cpu")]
mod pair;
mod send;
mod recv;

#[cfg(feature = "cpu")]
pub use pair::{Outboxes, buffers_bytes, long_parts_pay, outbox_bytes, share_buffers};
pub use recv::RecvConn;
pub use send::SendConn;

/// Shortest message that two processors put in a buffer that changes hands. The paths of shorter ones look at slots alone. That way 1.5 KiB
/// take 0.28 us instead of 0.33 (docs/measurements/2026-11-29-cpu-zen4.md); on Xeons too no function is slower.
pub const PING_PONG_MIN_BYTES: usize = 1 << 10;

/// All connections of one channel of one rank. Algorithms refer to them by index.
#[derive(Clone, Copy)]
pub struct Conns<'a> {
    /// Connections to consumers.
    pub send: &'a [SendConn],
    /// Connections from producers.
    pub recv: &'a [RecvConn],
}
