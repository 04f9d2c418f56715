//! Layer: host / net, the wire.
//! Takes: sockets from the bootstrap, devices of this host, registered memory.
//! Gives: [`Net`], which every network implements, [`find`], which selects one, and [`coll`], in-network reduction.
//! Never: knows collectives, reads a payload, names a line protocol (it asks `shared::proto`), blocks.

mod contract;
mod error;
pub mod coll;
#[doc(hidden)]
pub mod io;
pub(crate) mod bypass;
#[doc(hidden)]
pub mod message;
mod seal;
mod invitation;
mod outcome;
mod dial;
pub mod socket;
pub mod ib;
pub mod loopback;
pub mod fault;
pub mod plugin;
pub mod aggregate;
mod gdr;
mod config;
mod choose;
mod nearest;

pub use choose::{find, names_nothing, warn_of_names};
pub use config::NetConfig;
pub use contract::{
    Comm, Connector, HANDLE_BYTES, Listener, MemoryKinds, Net, NetHandle, NetMemory, NetMemoryKind,
    NetProperties, REQUESTS_MAX, RecvComm, Registration, Request, SendComm,
};
pub use error::NetError;
pub use gdr::GdrConfig;
pub(crate) use nearest::UNKNOWN_MBPS;
pub use nearest::{Locality, nearest};
