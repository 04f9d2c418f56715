//! Layer: host / gpu, a GPU independent of its driver.
//! Takes: the driver's results, from a machine.
//! Gives: [`Gpu`], a GPU and its memory for the setup of connections; facts, errors, and the file with the kernels
//! (`bundle`).
//! Never: calls a driver (a machine does), knows ranks or collectives.

mod error;
mod memory;
mod kernel;
pub mod bundle;

pub(crate) use error::code;
pub use error::{CuResult, CudaError, DeviceId, DriverVersion, MemoryKind, PciBus};
pub use kernel::KernelError;
pub use memory::{Gpu, GpuMemory, HostVisible, IPC_HANDLE_BYTES, NicMemory, RDMA_PAGE_BYTES, RdmaFacts};

/// A host function of a stream or a graph, run by a thread of the driver. Later work on the stream waits meanwhile,
/// and so may other streams: `run`, and dropping the value, must neither block nor call the driver.
pub trait HostWork: Send + Sync + 'static {
    /// Runs it.
    fn run(&self);
}
