//! Layer: shared / abi.
//! Takes: nothing.
//! Gives: the types in memory that several processes, devices or the host share, the ids that name them, and what follows from a name.
//! Never: behaviour: `fifo` and `proto` define what a word means over time.

pub mod fnv1a;
mod ids;
mod types;
mod answer;
mod func;
mod protocol;
mod conn;
mod offer;
mod stand;
mod kernel;
#[cfg(not(loom))]
mod digest;

pub use answer::{ASK_MIN_BYTES, Answer, may_ask};
pub use conn::{ConnControl, ConnEnd, ConnLayout, SlotHeader, SlotLine};
#[cfg(not(loom))]
pub use digest::ABI_DIGEST;
pub use func::{Buffers, Extent};
pub use ids::{ChannelId, Rank, Step};
pub use kernel::{
    CollArgs, KERNEL_DIRECT, KERNEL_MESSAGE_GRAIN_BYTES, KERNEL_MESSAGES_MAX, KERNEL_POST, KERNEL_PRE,
    KERNEL_TILES_AT, KERNEL_TILES_MAX, KernelColl, KernelLaunch, KernelMessage, KernelMonitor, KernelStop,
    KernelTree, MESSAGE_ASKS, MESSAGE_SENDS, MESSAGE_TILES, MessageArgs, RankBuffers, StopCause, Stopped,
    SymmetricArgs, direct_blocks_max,
};
pub use offer::{Offer, OfferReply};
pub use stand::{KERNEL_STANDS_MAX, KernelStand, KernelWait, Stands};
pub use types::{Algorithm, DataType, Func, Protocol, RedOp, UnknownValue};
