//! Layer: shared / sync / arch.
//! Takes: the machine the crate is compiled for.
//! Gives: one file per machine with its atomics; the rest of the workspace sees only what `sync` re-exports.
//! Never: a difference in meaning between machines.

#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
pub use host::*;

#[cfg(loom)]
mod loom;
#[cfg(loom)]
pub use self::loom::*;
