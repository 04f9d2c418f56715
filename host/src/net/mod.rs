//! Layer: host / net, the wire.
//! Takes: connected sockets from the bootstrap and connections in memory from the channels.
//! Gives: links that carry the slots of a connection to another host.
//! Never: knows collectives, reads a payload, names a line protocol (it asks `shared::proto`), blocks.

pub mod stream;
