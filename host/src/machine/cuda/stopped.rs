//! From a kernel's stop cause to the communicator's fault.

use super::call_times::CallTimes;
use super::driver::{CudaError, Event, StreamRef};
use super::hopeless::HopelessWaits;
use super::monitor::Monitor;
use super::parts::CudaParts;
use super::samples::Samples;
use super::stands::{Found, Looks};
use super::state::Cuda;
use crate::gpu::KernelError;
use crate::launch::{
    Fault, Health, Idle, KernelAt, Kernels, Notify, Outstanding, Probe, Progress, Recorded, RunError, Slept,
    SlowWait, Standing, announce,
};
use crate::machine::Verdict;
use crate::plan::CallRecord;
use oxccl_shared::abi::{Stands, StopCause, Stopped};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Asks of a communicator's kernels from any thread. Their page and their event live as long as the machine, and a call of this.
pub(super) struct KernelProbe {
    health: Arc<Health>,
    notify: Arc<dyn Notify + Sync>,
    monitor: Weak<Monitor>,
    /// Recorded after each call.
    done: Weak<Event>,
    /// Calls known to be done.
    calls_done: Mutex<u64>,
    /// What kernels that wait have said.
    looks: Mutex<Looks>,
    /// How those of an operation that lasts divide their time.
    samples: Mutex<Samples>,
    /// Whether what they wait for can still come.
    hopeless: Mutex<HopelessWaits>,
    /// When calls ran, where that is kept.
    times: Weak<CallTimes>,
}

impl KernelProbe {
    /// The latest call, of messages too.
    fn latest(&self) -> Option<CallRecord> {
        self.health.recorder().latest(1).first().map(|found| found.record)
    }

    /// What kernels wait for, if they do, and in which call. Counts the time.
    fn look(&self, monitor: &Monitor) -> Option<(Found, Option<CallRecord>)> {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let recorder = self.health.recorder();
        let found = looks.look(monitor.stands(), (Instant::now(), recorder.ticks()))?;
        self.health.count_wait(found.peer(), found.ticks);
        Some((found, self.call_at(&found.stands)))
    }

    /// How the operation behind so many calls divides its time, and which it is, if it has lasted and was looked at.
    fn divided(&self, done: u64) -> (Option<Idle>, Option<CallRecord>) {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        (samples.idle(done), samples.last(done).and_then(|stands| self.call_at(&stands)))
    }

    /// The call in which a kernel stands.
    fn call_at(&self, &Stands { launch, wait, .. }: &Stands) -> Option<CallRecord> {
        self.health.recorder().call_with(launch, wait.peer, wait.is_credit)
    }
}

impl Probe for KernelProbe {
    fn check(&self) -> Result<(), Outstanding> {
        if let Some(fault) = self.health.fault() {
            return Err(fault);
        }
        let stopped =
            self.monitor.upgrade().and_then(|monitor| Some((monitor.stopped()?, monitor.timeout())));
        let verdict =
            || Verdict { health: &self.health, notify: &*self.notify, latest: self.health.latest() };
        stopped.map_or(Ok(()), |(stopped, limit)| Err(stopped_by(&verdict(), stopped, limit)))
    }

    fn has_failed(&self) -> bool {
        self.health.is_stopped()
    }

    fn progress(&self) -> Progress {
        // Before the event is asked, which follows all of these.
        let enqueued = self.health.returned();
        let is_done = |event: Arc<Event>| {
            let bound = event.device().bind();
            bound.and_then(|_bound| event.is_done()).unwrap_or(false)
        };
        // A machine is dropped once its calls have ended.
        let all_done = self.done.upgrade().is_none_or(is_done);
        let mut done = self.calls_done.lock().unwrap_or_else(PoisonError::into_inner);
        if all_done {
            *done = enqueued.max(*done);
        }
        Progress { begun: self.health.begun(), done: *done, latest: self.health.latest() }
    }

    fn standing(&self) -> Standing {
        let monitor = self.monitor.upgrade();
        // Before the driver is asked, which may take its time.
        let found = monitor.as_ref().and_then(|monitor| self.look(monitor));
        let Progress { begun, done, latest } = self.progress();
        if let Some(SlowWait { peer, during, waited, .. }) = self.health.slow_wait() {
            // The caller's thread waits for connections, and the call is not enqueued.
            let (waits_for, waited_ms) = (Some(peer), waited.as_millis() as u64);
            let mark = self.health.recorder().mark_of_present(during);
            return Standing {
                begun,
                done,
                latest,
                during,
                mark,
                waits_for,
                waited_ms,
                ..Standing::default()
            };
        }
        let waits = found.map(|(Found { block, stands, .. }, _)| {
            let (wait, launch) = (stands.wait, stands.launch);
            KernelAt { peer: wait.peer, is_credit: wait.is_credit, step: wait.step, block, launch }
        });
        let (idle, sampled) = self.divided(done);
        let enqueued = || self.latest().filter(|_| done < begun);
        let is_known = monitor.as_ref().is_some_and(|monitor| !monitor.is_silent());
        let has_graphs = monitor.as_ref().is_some_and(|monitor| monitor.has_graphs());
        let during = found.and_then(|(_, record)| record).or(sampled).or_else(enqueued);
        Standing {
            begun,
            done,
            latest,
            during,
            mark: self.health.recorder().mark_of_present(during),
            waits_for: waits.map(|at| at.peer),
            waited_ms: found.map_or(0, |(found, _)| found.waited.as_millis() as u64),
            idle,
            kernels: (is_known || waits.is_some()).then_some(Kernels { waits, has_graphs }),
            ..Standing::default()
        }
    }

    fn end_hopeless(&self, standing: &Standing) -> Option<Duration> {
        let mut watch = self.hopeless.lock().unwrap_or_else(PoisonError::into_inner);
        let has_graphs = self.monitor.upgrade().is_some_and(|monitor| monitor.has_graphs());
        let (found, again) = watch.look(Instant::now(), standing, has_graphs, (&self.health, &*self.notify));
        if let Some(fault) = found {
            announce(&*self.notify, &self.health.fail(fault, standing.during));
        }
        again
    }

    fn add_times(&self, calls: &mut [Recorded]) {
        if let Some(times) = self.times.upgrade() {
            times.add_to(calls);
        }
    }

    fn sample(&self, slept: Slept) -> bool {
        let Some(monitor) = self.monitor.upgrade() else { return false };
        let done = *self.calls_done.lock().unwrap_or_else(PoisonError::into_inner);
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.look(done, slept, monitor.stands())
    }

    fn count_anew(&self) {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).begin_anew();
    }

    fn is_polled(&self) -> bool {
        true
    }
}

/// Turns a kernel's stop cause into the communicator's fault, and reports it to the other ranks. Kernels wait up to the limit.
fn stopped_by(verdict: &Verdict<'_>, Stopped { cause, peer, .. }: Stopped, limit: Duration) -> Outstanding {
    match cause {
        StopCause::Aborted => verdict.fail(Fault::Aborted),
        StopCause::NoCredit | StopCause::NoData => verdict.overdue(peer, limit, None),
        StopCause::Mismatch => verdict.mismatch(peer),
    }
}

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

    #[cold]
    fn kernel_stopped(&self, stopped: Stopped) -> Outstanding {
        stopped_by(&self.verdict(), stopped, self.parts.timeout)
    }

    /// For other threads.
    pub(super) fn new_probe(&self) -> KernelProbe {
        let CudaParts { health, notify, monitor, .. } = &self.parts;
        KernelProbe {
            health: health.clone(),
            notify: notify.clone(),
            monitor: Arc::downgrade(monitor),
            done: Arc::downgrade(self.order.done()),
            calls_done: Mutex::new(0),
            looks: Mutex::default(),
            samples: Mutex::default(),
            hopeless: Mutex::default(),
            times: self.times.as_ref().map_or_else(Weak::new, Arc::downgrade),
        }
    }

    pub(super) fn verdict(&self) -> Verdict<'_> {
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

    /// Calls did not get onto the stream, or not all of them. Where a part did, the other ranks wait for the rest, and a program that repeats
    /// the calls would send that part twice: the communicator fails. What a capture has of them is not run by this. Calls of which
    /// nothing is there can be repeated.
    #[cold]
    pub(super) fn refused(&mut self, error: RunError) -> RunError {
        let error = self.note_fault(error);
        if let RunError::Gpu(refused) | RunError::Kernel(KernelError::Cuda(refused)) = &error
            && let CudaError::Call { device, result, .. } = refused
            && self.has_enqueued
            && self.order.capture().is_none()
            && !self.parts.health.is_stopped()
        {
            self.fail(Fault::Gpu { device: *device, result: *result });
        }
        self.take_back_choices();
        error
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
