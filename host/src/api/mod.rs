//! Layer: host / api, what a user meets.
//! Takes: a user's calls with typed buffers.
//! Gives: [`Communicator`], [`group()`], [`Config`], [`Error`]; every argument is checked here, and only here.
//! Never: moves data, names `ncclResult_t` (that is `capi`).

mod error;
mod config;
pub mod tune_file;
mod operator;
mod membership;
mod split;
mod builder;
mod communicator;
mod collectives;
mod group;
mod memory;
pub mod launcher;
mod unique_id;
pub mod device;

pub use crate::launch::GROUP_COMMUNICATORS_MAX;
pub use builder::CommunicatorBuilder;
pub use collectives::Untyped;
pub use communicator::Communicator;
pub use config::{Config, ConfigError};
pub use error::{ArgumentError, Error, OperationError};
pub use group::{Group, group};
pub use membership::AbortHandle;
pub use memory::{MemoryReport, PeerMemory};
pub use operator::ReduceOp;
