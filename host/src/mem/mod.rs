//! Layer: host / mem, a leaf.
//! Takes: a length, and for shared memory a name that the ranks of a host know and nobody else can guess.
//! Gives: page-aligned zeroed memory for connections and control pages, private to a process or shared through
//! `/dev/shm`. It leaves no file behind, however a process ends.
//! Never: interprets the memory, waits for another rank, runs after communicator creation.
//!
//! # Life of a shared segment
//! ```text
//! creator   shm_create: file linked, locked, space reserved     ... barrier ...   drop(ShmFile): unlinked
//! peers                                    shm_open: mapped     ... barrier ...
//! crash before the barrier: the kernel frees the lock; the next communicator's sweep_stale removes the file
//! crash after the barrier:  no name is left, the kernel frees the memory with the last mapping
//! ```

mod error;
mod name;
mod header;
mod segment;
mod file;
mod sweep;
mod registry;

pub use error::{MemError, ShmProperty};
pub use file::ShmFile;
pub use name::{ShmName, unlink_all};
pub use registry::{lookup, publish};
pub use segment::Segment;
pub use sweep::sweep_stale;
