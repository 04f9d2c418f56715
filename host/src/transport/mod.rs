//! Layer: host / transport.
//! Takes: what the bootstrap gathered about two ranks.
//! Gives: how one reaches the other, and the memory or stream that does it.
//! Never: knows collectives or line formats.

mod kind;
mod peer;
mod stream;
pub mod p2p;

pub use kind::{Allowed, TransportKind};
pub use peer::{PeerInfo, processors_each};
pub use stream::stream_layout;
