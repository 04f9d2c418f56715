//! Layer: host / net / stream.
//! Takes: one connected TCP socket per directed connection, and the connection's local block on either host.
//! Gives: [`StreamSend`], the consumer of the block that local kernels fill, and [`StreamRecv`], the producer of the block
//! that local kernels empty. Together they are one connection whose two halves lie on two hosts.
//! Never: blocks, allocates after construction, looks into a slot.
//!
//! ```text
//! host of the producer                                          host of the consumer
//! kernel -> block -> StreamSend -> sendmsg ~~ TCP ~~ recvmsg -> StreamRecv -> block -> kernel
//!             head <-'  released when in the socket               '-> tail, once whole
//! ```
//! One frame is one slot: 16 bytes of header, then the bytes of the slot as they lie in memory, flags of the line
//! protocols included, since step counters are equal on both hosts. Flow control is the blocks' own: a receiver without
//! an empty slot stops reading, and TCP does the rest.

mod error;
mod frame;
mod block;
mod send;
mod recv;
mod link;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests_machines;
#[cfg(test)]
mod tests_loopback;

pub use error::{Direction, FrameFault, LinkError};
pub use frame::FrameHeader;
pub use link::{StreamRecv, StreamSend};
