//! The monitor page, in host memory: aborts a communicator's kernels, and takes their stop cause.

use super::driver::{CudaError, Device, PinnedMemory};
use oxccl_shared::abi::{KernelMonitor, Stopped};

/// A page for the kernels of one communicator on one device.
#[derive(Debug)]
pub struct Monitor {
    memory: PinnedMemory,
}

impl Monitor {
    /// An empty page.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(device: &Device) -> Result<Monitor, CudaError> {
        PinnedMemory::zeroed(device, size_of::<KernelMonitor>()).map(|memory| Monitor { memory })
    }

    fn page(&self) -> &KernelMonitor {
        // SAFETY: page-aligned zeros, as long as the type, of words that any thread or device may access at any time.
        unsafe { &*self.memory.host().cast::<KernelMonitor>() }
    }

    /// Its address for kernels.
    pub fn address(&self) -> *const KernelMonitor {
        std::ptr::without_provenance(self.memory.address() as usize)
    }

    /// Kernels stop at their next abort check, within about a millisecond; later ones as soon as they wait.
    pub fn abort(&self) {
        // Relaxed, as the kernels read it: the word is all that is said.
        self.page().abort.store_relaxed(1);
    }

    /// Why a kernel stopped and whom it waited for.
    pub fn stopped(&self) -> Option<Stopped> {
        self.page().stopped.read()
    }
}
