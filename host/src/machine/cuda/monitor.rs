//! The monitor page, in host memory: aborts a communicator's kernels, and takes their stop cause.

use super::driver::{CudaError, Device, PinnedMemory};
use oxccl_shared::abi::{KernelMonitor, Stands, Stopped};
use oxccl_shared::sync::{Sys, Word};
use std::time::Duration;

/// A page for the kernels of one communicator on one device.
pub struct Monitor {
    memory: PinnedMemory,
    /// Of the host alone. Writer: the executor.
    enqueued: Enqueued,
}

/// What the latest calls are carried out by.
#[derive(Default)]
struct Enqueued {
    /// Not 0: the latest call runs no kernel.
    is_silent: Word<u32, Sys>,
    /// Not 0: a call was captured into a graph.
    has_graphs: Word<u32, Sys>,
}

impl Monitor {
    /// An empty page.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(device: &Device) -> Result<Monitor, CudaError> {
        PinnedMemory::zeroed(device, size_of::<KernelMonitor>())
            .map(|memory| Monitor { memory, enqueued: Enqueued::default() })
    }

    fn page(&self) -> &KernelMonitor {
        // SAFETY: page-aligned zeros, as long as the type, of words that any thread or device may access at any time.
        unsafe { &*self.memory.host().cast::<KernelMonitor>() }
    }

    /// Its address for kernels.
    pub fn address(&self) -> *const KernelMonitor {
        std::ptr::without_provenance(self.memory.address() as usize)
    }

    /// How long kernels wait for a peer.
    pub fn set_timeout(&self, timeout: Duration) {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: the launch of the first kernel follows, and orders it.
        self.page().timeout_ns.store_relaxed(timeout_ns);
    }

    /// The same, as it was set; of times beyond the clock's range the longest.
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.page().timeout_ns.load_relaxed())
    }

    /// Kernels stop at their next abort check, within about a millisecond; later ones as soon as they wait.
    pub fn abort(&self) {
        // Relaxed, as the kernels read it: the word is all that is said.
        self.page().abort.store_relaxed(1);
    }

    /// Where each block that has ever waited stood when it wrote last.
    pub fn stands(&self) -> impl Iterator<Item = Option<Stands>> + '_ {
        self.page().stands.iter().map(|stand| stand.read())
    }

    /// Says whether the call that is enqueued runs no kernel that would say what it waits for, and whether it is captured.
    #[inline]
    pub fn note_call(&self, is_silent: bool, is_captured: bool) {
        self.enqueued.is_silent.store_relaxed(is_silent.into());
        if is_captured {
            self.enqueued.has_graphs.store_relaxed(1);
        }
    }

    /// Whether the latest call runs no kernel.
    pub fn is_silent(&self) -> bool {
        self.enqueued.is_silent.load_relaxed() != 0
    }

    /// Whether calls were captured.
    pub fn has_graphs(&self) -> bool {
        self.enqueued.has_graphs.load_relaxed() != 0
    }

    /// Why a kernel stopped and whom it waited for.
    pub fn stopped(&self) -> Option<Stopped> {
        self.page().stopped.read()
    }
}
