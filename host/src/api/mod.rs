//! Layer: host / api, the public interface.
//! Takes: a user's calls with typed buffers.
//! Gives: [`Communicator`], [`group()`], [`Config`], [`Error`]; every argument is checked here, and only here.
//! Never: moves data, names `ncclResult_t` (that is `capi`).

mod one_sided_error;
mod selection_error;
mod error;
mod config;
pub mod settings;
pub mod tune_file;
mod operator;
mod roll;
mod reach;
mod polling;
mod stalls;
mod handle;
mod asked;
mod comm_call;
mod split;
mod membership;
mod farewell;
mod pending;
mod memory;
pub mod launcher;
mod unique_id;
mod operations;
mod requests;
mod group;
mod init_log;
mod builder;
mod device;
mod communicator;
mod regroup;
mod one_sided;
mod selection;
mod init;

pub use crate::machine::cpu::{Cpu, GROUP_COMMUNICATORS_MAX, IN_FLIGHT_MAX};
pub use crate::machine::cuda::{Cuda, DeviceSlice, DeviceSliceMut};
pub use crate::machine::cuda::{GpuElement, GpuRead, GpuWrite};
pub use crate::transport::p2p::Window;
pub use builder::{Builder, CommunicatorBuilder, DeviceCommunicatorBuilder};
pub use communicator::{Comm, Communicator, DeviceCommunicator};
pub use config::{Config, ConfigError};
pub use error::{ArgumentError, BlocksError, Error, OperationError};
pub use group::{DeviceGroup, Group, device_group, group};
pub use handle::{CommHandle, CommState};
pub use init::Init;
pub use memory::{MemoryReport, PeerMemory};
pub use one_sided::Put;
pub use one_sided_error::{OneSidedError, Signal};
pub use operations::{Blocks, InGroup, OnStream, StreamGroup, Untyped, UntypedV, stream_group};
pub use operator::ReduceOp;
pub use pending::Pending;
pub use requests::{Calls, Request, Scope, ScopedRequest};
pub use selection::Selection;
pub use selection_error::SelectionError;
