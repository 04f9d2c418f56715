//! Why a kernel is unavailable.

use super::bundle::BundleError;
use super::error::{CudaError, DeviceId};
use thiserror::Error;

/// Why a kernel is unavailable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum KernelError {
    /// The bundle has none.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The driver refuses it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// There is no machine code of it for the device, and it was not to be compiled.
    #[error("kernel {name} is PTX alone, which is compiled when a call needs it")]
    NotCompiled {
        /// The kernel.
        name: String,
    },
    /// It cannot run in blocks of the planned size.
    #[error("{device}: kernel {name} was built for {threads_max} threads, and is to run with {threads}")]
    BlockSize {
        /// The device.
        device: DeviceId,
        /// The kernel.
        name: String,
        /// The planned size.
        threads: u32,
        /// The largest size that the kernel's registers and bounds allow.
        threads_max: u32,
    },
}
