//! Layer: host / transport.
//! Takes: the peer info of two ranks, from the bootstrap.
//! Gives: the transport between them, and its memory or stream.
//! Never: knows collectives or line formats.

mod table;
mod inproc;
mod shm;
mod cma;
mod tcp;
pub mod net;
pub mod p2p;
mod background;
mod contract;
mod kind;
mod peer;
mod layout;

pub use cma::{Cma, Probe, ProcessMemory};
pub use contract::{
    Asked, Asking, InboxName, Memory, OpenBy, Opener, Opening, Openings, RefusedNet, Transport,
    TransportError, Wires,
};
pub use kind::{Allowed, TransportKind};
pub use layout::stream_layout;
pub use peer::{PeerInfo, processors_each};
pub use table::{TRANSPORTS, transport_of};
