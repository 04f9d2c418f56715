//! Layer: host / transport.
//! Takes: the peer info of two ranks, from the bootstrap.
//! Gives: the transport between them, and its memory or stream.
//! Never: knows collectives or line formats.

mod kind;
mod peer;
mod stream;
pub mod p2p;

pub use kind::{Allowed, TransportKind};
pub use peer::{PeerInfo, processors_each};
pub use stream::stream_layout;
