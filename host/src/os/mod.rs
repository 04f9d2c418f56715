//! Layer: host / os.
//! Takes: errors of system calls.
//! Gives: what they mean where the system's own words do not help: a process without file descriptors.
//! Never: keeps a descriptor.

mod descriptors;

pub use descriptors::NoDescriptor;
pub(crate) use descriptors::{raise_limit, said, with_room};
