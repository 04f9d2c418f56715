//! Layer: host / gpu, what all may know of a GPU without knowing its driver.
//! Takes: what a machine's driver answers.
//! Gives: [`Gpu`], a GPU and its memory as those see it who make connections; facts, errors, and the file with the kernels (`bundle`).
//! Never: calls a driver (a machine does), knows ranks or collectives.

mod error;
mod memory;
mod kernel;
pub mod bundle;

pub(crate) use error::code;
pub use error::{CuResult, CudaError, DeviceId, DriverVersion, MemoryKind, PciBus};
pub use kernel::KernelError;
pub use memory::{Gpu, GpuMemory, HostVisible, IPC_HANDLE_BYTES, NicMemory, RDMA_PAGE_BYTES, RdmaFacts};

/// What a thread of the driver does when a stream or a graph has come to it. What comes behind it waits meanwhile, and so may that
/// of other streams: `run`, and dropping the value, must neither wait for anything nor call the driver.
pub trait HostWork: Send + Sync + 'static {
    /// Does it.
    fn run(&self);
}
