//! Layer: host / net / ib / verbs.
//! Takes: libibverbs, if the host has it.
//! Gives: devices, queues, queue pairs and registered memory, each kept alive by its users; statuses as text.
//! Never: interprets messages; links to libibverbs: one program starts on hosts with and without it.

pub mod abi;
mod library;
mod events;
mod device;
mod region;
mod queue;
pub mod words;

pub use device::OpenDevice;
pub use library::Verbs;
pub use queue::{CompletionQueue, QueuePair, Remote, Service};
pub use region::{Region, takes_dma_buf};
