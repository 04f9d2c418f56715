//! Layer: host / os.
//! Takes: system calls that need a file descriptor, and their errors; names of files.
//! Gives: the calls made again with a higher limit where there was none, and what the errors mean where the system's own words do not help;
//! files that can be read without waiting for anybody.
//! Never: keeps a descriptor, or reads.

mod descriptors;
mod files;

pub use descriptors::NoDescriptor;
pub(crate) use descriptors::{raise_limit, said, with_room};
pub(crate) use files::open_regular;
