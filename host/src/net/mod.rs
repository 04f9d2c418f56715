//! Layer: host / net, the wire.
//! Takes: sockets from the bootstrap, devices of this host, memory that was registered.
//! Gives: [`Net`], which every network implements, and [`stream`], the links of CPU ranks that are one TCP stream each.
//! Never: knows collectives, reads a payload, names a line protocol (it asks `shared::proto`), blocks.

mod contract;
mod error;
pub mod stream;

pub use contract::{
    Comm, Connector, HANDLE_BYTES, Listener, MemoryKinds, Net, NetHandle, NetMemory, NetMemoryKind,
    NetProperties, REQUESTS_MAX, RecvComm, Registration, Request, SendComm,
};
pub use error::NetError;
