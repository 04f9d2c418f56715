//! Layer: shared / fifo.
//! Takes: control words in memory that both sides map (`abi`), touched through `sync`.
//! Gives: credit arithmetic and the FIFOs built on it: steps between two ranks, orders from a user's thread to a proxy.
//! Never: payload formats (that is `proto`), waiting without a bound.

/// Slots of a connection buffer, and so how many steps a producer may run ahead of its consumer. NCCL's `NCCL_STEPS`.
pub const STEPS: usize = 8;
