//! From a kernel's stop cause to the communicator's fault.

use super::driver::{CudaError, StreamRef};
use super::machine::{Cuda, CudaParts};
use crate::gpu::KernelError;
use crate::launch::{Fault, Outstanding, RunError};
use crate::machine::Verdict;
use oxccl_shared::abi::{StopCause, Stopped};
use std::time::Duration;

impl Cuda {
    /// Whether the communicator is usable. Detects stopped kernels.
    ///
    /// # Errors
    /// Its fault.
    pub(super) fn check_kernels(&self) -> Result<(), Outstanding> {
        if let Some(fault) = self.parts.health.fault() {
            return Err(fault);
        }
        match self.parts.monitor.stopped() {
            None => Ok(()),
            Some(stopped) => Err(self.kernel_stopped(stopped)),
        }
    }

    /// Turns a kernel's stop cause into the communicator's fault, and reports it to the other ranks.
    #[cold]
    fn kernel_stopped(&self, Stopped { cause, peer, waited_us }: Stopped) -> Outstanding {
        let peer = peer.0;
        match cause {
            StopCause::Aborted => self.fail(Fault::Aborted),
            StopCause::NoCredit | StopCause::NoData => {
                self.verdict().overdue(peer, Duration::from_micros(u64::from(waited_us)))
            }
            StopCause::Mismatch => self.verdict().mismatch(peer),
        }
    }

    fn verdict(&self) -> Verdict<'_> {
        let CudaParts { health, notify, .. } = &self.parts;
        Verdict { health, notify: &**notify, latest: health.latest() }
    }

    pub(super) fn fail(&self, fault: Fault) -> Outstanding {
        self.verdict().fail(fault)
    }

    /// A broken context ends the communicator, here and for the other ranks.
    pub(super) fn note_fault(&self, error: RunError) -> RunError {
        match &error {
            RunError::Gpu(CudaError::Fault { device, result, .. })
            | RunError::Kernel(KernelError::Cuda(CudaError::Fault { device, result, .. })) => {
                self.fail(Fault::Gpu { device: *device, result: *result });
                error
            }
            _ => error,
        }
    }

    /// The driver refused a launch. A proxy that got its orders waits for slots that nobody fills, so the communicator fails. A broken
    /// capture launches nothing and issues nothing.
    #[cold]
    pub(super) fn launch_refused(
        &self,
        error: CudaError,
        has_orders: bool,
        stream: StreamRef<'_>,
    ) -> RunError {
        let is_void = self.order.capture().is_some_and(|capture| stream.still_capturing(capture).is_err());
        if let CudaError::Call { device, result, .. } = &error
            && has_orders
            && !is_void
        {
            self.fail(Fault::Gpu { device: *device, result: *result });
        }
        error.into()
    }
}
