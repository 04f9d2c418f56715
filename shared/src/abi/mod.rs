//! Layer: shared / abi.
//! Takes: nothing.
//! Gives: the types in memory that several processes, devices or the host share, and the ids that name them.
//! Never: behaviour: `fifo` and `proto` define what a word means over time.

pub mod fnv1a;
mod ids;
mod types;
mod conn;
mod kernel;
#[cfg(not(loom))]
mod digest;

pub use conn::{ConnControl, ConnEnd, ConnLayout, SlotHeader};
#[cfg(not(loom))]
pub use digest::ABI_DIGEST;
pub use ids::{ChannelId, Rank, Step};
pub use kernel::{
    CollArgs, KERNEL_MESSAGE_GRAIN_BYTES, KERNEL_MESSAGES_MAX, KERNEL_POST, KERNEL_PRE, KernelColl,
    KernelLaunch, KernelMessage, KernelMonitor, KernelStop, KernelTree, MessageArgs, StopCause, Stopped,
};
pub use types::{Algorithm, DataType, Func, Protocol, RedOp, UnknownValue};
