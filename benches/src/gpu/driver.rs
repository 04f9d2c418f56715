//! Where the driver is, and why a GPU cannot be measured.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use oxccl::cuda::{CudaError, Driver};
use std::time::Duration;

/// The driver's name, and where container runtimes put it without telling the loader.
const LIBCUDA: [&str; 4] = [
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

/// Why a GPU cannot be measured.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GpuError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error("--devices names {named} GPUs, and this machine has {needed} ranks")]
    Devices { named: usize, needed: u32 },
    #[error("rank {rank}'s stream on GPU {device} did not finish {what} within {} s (--timeout)", limit.as_secs_f64())]
    Late { rank: u32, device: u32, what: String, limit: Duration },
}

/// Starts the driver. The number of GPUs that this process sees.
pub fn start() -> Result<u32, GpuError> {
    for name in LIBCUDA {
        // SAFETY: its initialisers are those of a library meant to be loaded by any program.
        if let Ok(library) = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
            // Once it is open, wherever it lies, everybody's search for its plain name finds it: OxCCL's and NCCL's.
            std::mem::forget(library);
            break;
        }
    }
    Ok(Driver::get()?.device_count())
}
