//! OxCCL: collective communication between the GPUs and CPUs of one or many hosts.
//!
//! Layer: the library that users link; its modules are listed from the user down to the operating system.
//! Takes: calls of a [`Communicator`].
//! Gives: the same result on every rank, or an error that names the rank at fault.
//! Never: blocks for ever; every wait ends with a result or with the name of a rank.
//!
//! Start with [`guide`], which has a page for each concept.

// Without the tests and tools, nobody uses some of the items that they inspect.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unused_imports))]

pub mod guide;
pub mod api;
pub mod status;
// This repository's tests and tools use these modules, by the feature `internals`. Programs use the exports below.
cfg_if::cfg_if! {
    if #[cfg(feature = "internals")] {
        #[doc(hidden)]
        pub mod connect;
        #[doc(hidden)]
        pub mod machine;
        #[doc(hidden)]
        pub mod launch;
        #[doc(hidden)]
        pub mod profiler;
        #[doc(hidden)]
        pub mod tuner;
        #[doc(hidden)]
        pub mod plan;
        #[doc(hidden)]
        pub mod proxy;
        #[doc(hidden)]
        pub mod transport;
        #[doc(hidden)]
        pub mod net;
        #[doc(hidden)]
        pub mod bootstrap;
        #[doc(hidden)]
        pub mod topology;
        #[doc(hidden)]
        pub mod gpu;
        #[doc(hidden)]
        pub mod mem;
        #[doc(hidden)]
        pub mod wire;
        #[doc(hidden)]
        pub mod log;
        #[doc(hidden)]
        pub mod os;
    } else {
        mod connect;
        mod machine;
        mod launch;
        mod profiler;
        mod tuner;
        mod plan;
        mod proxy;
        mod transport;
        mod net;
        mod bootstrap;
        mod topology;
        mod gpu;
        mod mem;
        mod wire;
        mod log;
        mod os;
    }
}

pub use api::{
    ArgumentError, Blocks, BlocksError, Calls, Comm, CommHandle, CommState, Communicator,
    CommunicatorBuilder, Config, ConfigError, DeviceCommunicator, DeviceCommunicatorBuilder, DeviceGroup,
    DeviceSlice, DeviceSliceMut, Error, GpuElement, GpuRead, GpuWrite, Group, InGroup, MemoryReport,
    OnStream, OneSidedError, OperationError, PeerMemory, Pending, Put, ReduceOp, Request, Scope,
    ScopedRequest, Selection, SelectionError, Signal, StreamGroup, Untyped, UntypedV, Window, device_group,
    group, stream_group,
};
/// The crate whose streams and buffers [`DeviceCommunicator::on`] takes.
pub use cudarc;

pub use bootstrap::{BootstrapConfig, BootstrapError, UniqueId};
pub use connect::ConnectError;
pub use launch::{CommCall, CustomAlgorithm, Fault, Mark, Outstanding, Progress, Stall, StallClass};
pub use machine::cuda::driver as cuda;
pub use net::plugin::PluginName;
pub use oxccl_device::distance::SlotStores;
pub use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol, Rank, RedOp};
pub use oxccl_shared::reduce::{Element, F8E4M3, F8E5M2, bf16, f16};
pub use plan::CtaPolicy;
pub use transport::{Cma, TransportKind};
pub use tuner::TunerError;

/// The version of NCCL whose interface and environment this library follows.
pub const NCCL_VERSION: &str = "2.32.3";

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
