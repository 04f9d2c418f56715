//! Layer: host / os.
//! Takes: system calls that need a file descriptor, and their errors; names of files.
//! Gives: the calls repeated with a higher limit when descriptors run out; errors with advice where the system's text
//! has none; names looked up and connections made within a time; files opened without waiting, and written within a limit; which build this is; whether a process was forked.
//! Never: keeps a descriptor, or reads.

mod connect;
mod descriptors;
mod file_limit;
mod files;
mod fork;
mod image;
mod lookup;

pub(crate) use connect::connect_any;
pub use descriptors::NoDescriptor;
pub use descriptors::describe;
pub(crate) use descriptors::{limit as descriptors_max, raise_limit, room_for, with_room};
pub(crate) use file_limit::write_within_limit;
pub(crate) use files::{create_at_once, open_regular};
pub use fork::Origin;
pub use image::build_id;
pub(crate) use lookup::{look_up, look_up_at, preferred};
