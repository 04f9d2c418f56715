//! Layer: host / api / operations.
//! Takes: typed buffers of each operation.
//! Gives: the methods of communicators and groups, on CPUs and on streams; each is written out, so that it can be found and read.
//! Never: runs a call whose buffers do not have the operation's shapes.
//!
//! On CPUs `communicator` and `group` have `pub fn all_reduce` and its siblings, and so have `scope` and `calls`, which start operations
//! without waiting for them. On streams `device` and `device_group` have
//! `pub unsafe fn all_reduce` and its siblings: the stream uses the buffers after the call has returned. `on_stream` has the same for
//! buffers of cudarc, which are kept until the stream is done: no `unsafe`.
//!
//! Shapes, with n ranks; `count` is what every rank must agree on, in elements:
//!
//! | operation | `send` | `recv` | count |
//! |---|---|---|---|
//! | all-reduce, broadcast, reduce | count | count | `send.len()` |
//! | all-gather | count | n * count | `send.len()` |
//! | reduce-scatter | n * count | count | `recv.len()` |
//! | all-to-all | n * count | n * count | `send.len() / n` |
//! | gather | count | n * count at the root, else ignored | `send.len()` |
//! | all-to-all-v | a block for each rank | a block for each rank | every block's own, equal at its two ends |
//! | all-gather-v | this rank's block | a block for each rank | all blocks' |
//! | reduce-scatter-v | a block for each rank | this rank's block | all blocks' |
//! | scatter | n * count at the root, else ignored | count | `recv.len()` |
//!
//! Block `r` of an n * count buffer is rank `r`'s.

mod untyped;
mod shapes;
mod communicator;
mod group;
mod calls;
mod scope;
mod device;
mod device_group;
mod all_to_all_v;
mod v;
mod on_stream;

pub use all_to_all_v::{Blocks, UntypedV};
pub use on_stream::{InGroup, OnStream, StreamGroup, stream_group};
pub use untyped::Untyped;
