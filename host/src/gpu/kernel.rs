//! Why there is no kernel for a call.

use super::bundle::BundleError;
use super::error::{CudaError, DeviceId};
use thiserror::Error;

/// Why a kernel cannot be had.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum KernelError {
    /// The bundle has none.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The driver does not take it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// It cannot run in blocks of the size that was measured best.
    #[error("{device}: kernel {name} was built for {threads_max} threads, and is to run with {threads}")]
    BlockSize {
        /// Where.
        device: DeviceId,
        /// The kernel.
        name: String,
        /// What the plan says.
        threads: u32,
        /// What the kernel's registers and bounds allow.
        threads_max: u32,
    },
}
