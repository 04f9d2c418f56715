//! Layer: device, above `shared`, below the host library.
//! Takes: a work descriptor and connections that the host has made.
//! Gives: the primitives and algorithms that move and reduce data, written once over a small kernel DSL.
//! Never: makes connections, chooses algorithms, allocates.

pub mod coll;
pub mod prims;
pub mod conn;
pub mod gpu;
