//! Layer: host / machine / cuda / driver, a leaf: NVIDIA's driver, loaded when first asked for.
//! Takes: device ordinals, kernel images, the streams of users.
//! Gives: owned devices, memory, streams, events, modules, graphs and shareable allocations, with errors that name the
//! device, the operation and what to do.
//! Never: needs CUDA to build or to start, knows ranks or collectives, leaves another context current than it found.
//!
//! Only the driver's library (`libcuda.so.1`) is used, so a program with any CUDA runtime, or with none, can link this
//! crate. Types of handles come from `cudarc`, whose streams and slices users can hand over. Its functions are not used:
//! they panic where the library or a symbol is missing, and declare result codes as a closed enum, which a newer driver
//! may break.
//!
//! From below: `api`; `library`; `device`; what a device holds. Errors and the file with the kernels are [`crate::gpu`]'s.

mod api;
mod library;
mod device;
mod capture;
mod stream;
mod side;
mod host_work;
mod event;
mod memory;
mod pinned;
mod shareable;
mod rdma;
mod legacy_ipc;
mod callers;
mod shape;
mod module;
mod graph;

pub use crate::gpu::{
    CuResult, CudaError, DeviceId, DriverVersion, HostWork, IPC_HANDLE_BYTES, MemoryKind, PciBus,
    RDMA_PAGE_BYTES, RdmaFacts, bundle,
};
pub use callers::CallersMemory;
pub use capture::RelaxedCapture;
pub use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUfunction, CUstream};
pub use device::{ContextGuard, Device};
pub use event::Event;
pub use graph::{Capture, Graph, GraphExec};
pub use host_work::{CaptureId, Capturing, HostNode};
pub use legacy_ipc::{IpcMapping, ipc_handle};
pub use library::Driver;
pub use memory::DeviceMemory;
pub use module::{Function, Module};
pub use pinned::{HostMapping, PinnedMemory};
pub use rdma::RdmaMemory;
pub use shape::Shape;
pub use shareable::{Allocation, Mapping};
pub use side::side_stream;
pub use stream::{Stream, StreamRef, WordOp};
