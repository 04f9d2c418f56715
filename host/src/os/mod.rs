//! Layer: host / os.
//! Takes: system calls that need a file descriptor, and their errors.
//! Gives: the calls made again with a higher limit where there was none, and what the errors mean where the system's own words do not help.
//! Never: keeps a descriptor.

mod descriptors;

pub use descriptors::NoDescriptor;
pub(crate) use descriptors::{raise_limit, said, with_room};
