//! Layer: host / net / message.
//! Takes: lanes: one or more streams of bytes ([`StreamIo`](super::io::StreamIo)) on which nothing has travelled yet.
//! Gives: [`Sender`] and [`Receiver`], the two communicators of a connection: messages in order over the first lane, the
//! control lane, long ones striped over the others.
//! Never: blocks, allocates or locks after construction; reads more from a lane than is owed to receives that were posted, but
//! for the few kilobytes that it reads ahead on the control lane.
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

pub use ends::Ends;
pub use receiver::Receiver;
pub use sender::Sender;

/// The longest message: far beyond any buffer, and a length of garbage is mostly longer.
pub const MESSAGE_MAX_BYTES: usize = 1 << 40;
