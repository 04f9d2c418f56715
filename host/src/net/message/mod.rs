//! Layer: host / net / message.
//! Takes: one or more fresh byte streams ([`StreamIo`](super::io::StreamIo)).
//! Gives: [`Sender`] and [`Receiver`], the two ends of a connection: messages in order over the first stream, the
//! control stream, long ones striped over the others.
//! Never: blocks, allocates or locks after construction; reads more from a stream than the posted receives need,
//! except a few kilobytes of read-ahead on the control stream.
//!
//! ```text
//! control  | header 0 | body 0 | header 1 | header 2 | body 2 ...     short messages are whole here
//! lane 1                       | stripe of 1 | ...                    a long one is only announced,
//! lane 2                       | stripe of 1 | ...                    its stripes follow from its length and number
//! ```

mod header;
mod stripes;
mod requests;
mod ends;
mod stage;
mod sender;
mod receiver;

#[cfg(test)]
mod tests;

pub use ends::Ends;
pub use receiver::Receiver;
pub use sender::Sender;

/// Most bytes of a message: what its header has room for, and far beyond any buffer.
pub const MESSAGE_MAX_BYTES: usize = u32::MAX as usize;
