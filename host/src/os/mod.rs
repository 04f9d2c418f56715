//! Layer: host / os.
//! Takes: system calls that need a file descriptor, and their errors; names of files.
//! Gives: the calls repeated with a higher limit when descriptors run out; errors with advice where the system's text
//! has none; files that can be read without blocking; which build this is; whether a process was forked.
//! Never: keeps a descriptor, or reads.

mod descriptors;
mod files;
mod fork;
mod image;

pub use descriptors::NoDescriptor;
pub(crate) use descriptors::{describe, limit as descriptors_max, raise_limit, with_room};
pub(crate) use files::open_regular;
pub(crate) use fork::Origin;
pub use image::build_id;
