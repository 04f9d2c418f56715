//! From what a kernel says when it stops to the communicator's fault.

use super::engine::{DeviceEngine, DeviceEngineParts, EnqueueError};
use super::kernels::KernelError;
use crate::cuda::CudaError;
use crate::launch::health::{Fault, Outstanding};
use crate::launch::told::Told;
use crate::launch::wait::{NAP, REPLY_TIME, announce};
use oxccl_shared::abi::StopCause;
use std::time::{Duration, Instant};

impl DeviceEngine {
    /// Whether the communicator can go on. A kernel that has stopped is noticed here.
    ///
    /// # Errors
    /// Its fault.
    pub fn check(&self) -> Result<(), Outstanding> {
        if let Some(fault) = self.parts.health.fault() {
            return Err(fault);
        }
        match self.parts.monitor.stopped() {
            None => Ok(()),
            Some((cause, peer, expected, _)) => Err(self.kernel_stopped(cause, peer.0, expected)),
        }
    }

    /// Turns what a kernel says into the communicator's fault, and tells the others.
    #[cold]
    fn kernel_stopped(&self, cause: StopCause, peer: u32, expected: u64) -> Outstanding {
        let DeviceEngineParts { health, tell, .. } = &self.parts;
        let fault = match cause {
            StopCause::Aborted => Fault::Aborted,
            StopCause::NoCredit | StopCause::NoData => {
                // Our neighbour may itself have waited for another: everybody whose kernel stops says for whom it waited.
                tell.tell(Told::WaitsFor(Some(peer)));
                self.listen();
                Fault::Timeout { rank: health.waits().guilty(peer), waited: Duration::from_nanos(expected) }
            }
            StopCause::Mismatch => {
                // The peer answers with its own call, which makes the better message.
                if let Some(latest) = self.history.latest() {
                    health.remembered(latest.seq).for_each(|record| tell.tell(Told::Call(record)));
                    self.listen();
                }
                Fault::Mismatch { rank: peer, theirs: None }
            }
        };
        self.fail(fault)
    }

    /// Gives the others a moment to say what they know.
    fn listen(&self) {
        let asked = Instant::now();
        while !self.parts.health.is_stopped() && asked.elapsed() < REPLY_TIME {
            std::thread::sleep(NAP);
        }
    }

    pub(super) fn fail(&self, fault: Fault) -> Outstanding {
        let outstanding = self.parts.health.fail(fault, self.history.latest());
        announce(&*self.parts.tell, &outstanding);
        outstanding
    }

    /// A broken context is the end of the communicator, here and for the others.
    pub fn stopped_by(&self, error: EnqueueError) -> EnqueueError {
        match &error {
            EnqueueError::Cuda(CudaError::Fault { device, result, .. })
            | EnqueueError::Kernel(KernelError::Cuda(CudaError::Fault { device, result, .. })) => {
                self.fail(Fault::Gpu { device: *device, result: *result });
                error
            }
            _ => error,
        }
    }
}
