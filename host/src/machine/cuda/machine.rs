//! A rank's kernels on a GPU, enqueued on streams, as a [`Machine`].

use super::call_times::CallTimes;
use super::copies::CopyEngines;
use super::driver::{CudaError, StreamRef};
use super::one_sided::OneSided;
use super::own;
use super::state::Cuda;
use crate::bootstrap::Bootstrap;
use crate::launch::{
    BACK_OFF, Behind, BehindError, Fault, GroupMachine, Health, Job, Machine, Message, Occupied, Outstanding,
    OwnCopy, Probe, RawCall, RawQueue, RunError, StartError, StreamMachine,
};
use crate::machine::{NetProxy, Verdict};
use crate::plan::tuning::Explanation;
use crate::plan::{Call, CallPlan, Facts, Forced, Placement, Plan, SymmetricPlan, message_kernels};
use oxccl_shared::abi::Rank;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Machine for Cuda {
    type Flight = ();
    const RETURNS_DONE: bool = false;

    fn flight(&self) {}

    fn rank(&self) -> Rank {
        self.parts.rank
    }

    fn nranks(&self) -> u32 {
        self.parts.facts.nranks
    }

    fn health(&self) -> &Arc<Health> {
        &self.parts.health
    }

    fn explain(&self, call: &Call) -> Explanation {
        self.parts.tuner.explain(&self.parts.facts, call)
    }

    fn facts(&self) -> &Facts {
        &self.parts.facts
    }

    fn check(&self) -> Result<(), Outstanding> {
        self.check_kernels()
    }

    /// Kernels stop without a word to the health.
    fn may_be_stopped(&self) -> bool {
        true
    }

    fn probe(&self) -> Arc<dyn Probe> {
        Arc::new(self.new_probe())
    }

    fn drain(&self) -> Result<(), Outstanding> {
        let started = Instant::now();
        while !self.is_done(false) && started.elapsed() < self.parts.timeout {
            self.check()?;
            std::thread::sleep(BACK_OFF);
        }
        self.check()
    }

    fn replays_calls(&self) -> bool {
        self.parts.monitor.has_graphs()
    }

    fn stopped_by(&self, error: RunError) -> RunError {
        self.note_fault(error)
    }

    fn plan(&self, call: &Call, forced: Option<Forced>) -> CallPlan {
        let facts = &self.parts.facts;
        match self.parts.tuner.plan(facts, call, forced) {
            CallPlan::Collective(_) if facts.nranks == 1 => self.plan_alone(call),
            plan => plan,
        }
    }

    fn sees_buffers(&self) -> bool {
        self.copies.is_some()
    }

    fn plan_placed(&self, raw: &RawCall, plan: CallPlan) -> CallPlan {
        self.placed(raw, plan)
    }

    /// How often a graph is launched nobody says.
    #[inline]
    fn count(&mut self, calls: &[RawCall], plans: &[CallPlan], are_new: bool) -> bool {
        if self.order.capture().is_some() {
            return false;
        }
        let Some(traffic) = self.parts.health.planned_traffic.get() else { return true };
        if are_new {
            traffic.begin(calls, plans, |raw| self.custom(raw, 0).is_none());
        }
        traffic.count();
        true
    }

    fn compare(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        self.compare_choices(calls, plans)
    }

    fn connect_for(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        self.connect_calls(calls, plans)
    }

    /// Loads every kernel that the calls need, unless all were loaded when the communicator was created: a bundle may have PTX alone, or
    /// lack some, and a rank that is alone seldom needs any.
    ///
    /// # Errors
    /// [`RunError::Kernel`].
    fn prepare(&mut self, plans: &[CallPlan]) -> Result<(), RunError> {
        for plan in plans {
            match plan {
                CallPlan::Symmetric(plan) => {
                    self.function(plan.kernel(), plan.threads)?;
                }
                _ if self.parts.has_all_kernels => {}
                CallPlan::Messages => {
                    let facts = self.parts.facts;
                    for (kernel, threads) in message_kernels(&facts).filter(|_| facts.nranks > 1) {
                        self.function(kernel, threads)?;
                    }
                }
                CallPlan::Collective(plan) => {
                    self.function(plan.kernel(), plan.threads)?;
                }
                CallPlan::Local | CallPlan::CopyEngines(_) => {}
            }
        }
        Ok(())
    }

    unsafe fn within(
        &mut self,
        queues: &[RawQueue],
        plans: &[CallPlan],
        body: impl FnOnce(&mut Self) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        self.has_enqueued = false;
        // SAFETY: (1, 2) obligation 1.
        let stream = |queue: RawQueue| unsafe { StreamRef::from_raw(&device, queue.cast()) };
        let first = queues[0];
        let others = queues[1..].iter().copied().filter(|other| *other != first).map(stream);
        let put = device.bind().map_err(RunError::from).and_then(|_bound| {
            self.prepare(plans)?;
            let kernels = self.parts.kernels.clone();
            let _launching = kernels.launching();
            self.order.enter(stream(first), others.clone())?;
            let is_timed =
                |times: &Arc<CallTimes>| self.order.capture().is_none() && times.begin(stream(first));
            let timed = self.times.clone().filter(is_timed);
            let recorded = self.parts.health.recorder().next();
            let ran = body(self);
            if let (Some(times), Ok(())) = (timed, &ran) {
                times.end(stream(first), recorded..self.parts.health.recorder().next());
            }
            // A part that is there is followed too.
            let is_followed = ran.is_ok() || self.has_enqueued;
            let left = if is_followed { self.order.leave(stream(first), others) } else { Ok(()) };
            ran.and(left.map_err(RunError::from))
        });
        put.map_err(|error| self.refused(error))
    }

    unsafe fn collective(
        &mut self,
        raw: &RawCall,
        plan: &Plan,
        tag: u32,
        queue: RawQueue,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&device, queue.cast()) };
        self.note_call(false);
        // SAFETY: (1) obligation 2.
        unsafe { self.launch_collective(raw, plan, tag, stream)? };
        self.has_enqueued = true;
        Ok(())
    }

    unsafe fn copy(
        &mut self,
        from: *const u8,
        to: *mut u8,
        len_bytes: usize,
        queue: RawQueue,
    ) -> Result<(), RunError> {
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&self.parts.device, queue.cast()) };
        // SAFETY: obligation 1.
        unsafe { own::copy(&OwnCopy { from, to, len_bytes }, stream) }.map_err(RunError::from)
    }

    unsafe fn copies(
        &mut self,
        raw: &RawCall,
        placement: Placement,
        queue: RawQueue,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&device, queue.cast()) };
        self.note_call(true);
        // Of its steps nobody counts how many are there when one is refused.
        self.has_enqueued = true;
        // SAFETY: (1) obligations 1 and 2.
        unsafe { self.enqueue_copies(raw, placement, stream) }
    }

    unsafe fn symmetric(
        &mut self,
        raw: &RawCall,
        plan: &SymmetricPlan,
        tag: u32,
        queue: RawQueue,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&device, queue.cast()) };
        self.note_call(false);
        // SAFETY: (1) obligations 1 and 2.
        unsafe { self.launch_symmetric(raw, plan, tag, stream)? };
        self.has_enqueued = true;
        Ok(())
    }

    unsafe fn messages(
        &mut self,
        messages: &[(Message, u32)],
        own: &[OwnCopy],
        queue: RawQueue,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&device, queue.cast()) };
        self.note_call(false);
        // SAFETY: (1) obligation 1.
        unsafe { self.all_messages(messages, own, stream) }
    }

    fn own_messages_differ(&mut self) -> RunError {
        // The latest collective, which other faults name, has no part in it.
        let verdict = Verdict { latest: None, ..self.verdict() };
        RunError::Stopped(verdict.fail(Fault::SelfMessages))
    }

    /// Waits until every enqueued operation is done. An operation that does not end within the timeout is aborted.
    fn close(mut self, bootstrap: &Bootstrap) -> Option<Cuda> {
        let started = Instant::now();
        while !self.is_done(started.elapsed() > self.parts.timeout) {
            let is_overdue = started.elapsed() > self.parts.timeout;
            if is_overdue {
                self.parts.monitor.abort();
            }
            // Again and again: a rank that does not know yet may signal meanwhile.
            if is_overdue || self.parts.health.is_stopped() {
                self.one_sided.iter().for_each(OneSided::release);
                self.copies.iter().for_each(CopyEngines::release);
            }
            if started.elapsed() > self.parts.timeout.saturating_add(ABORT_TIME) {
                tracing::warn!(rank = %self.parts.rank, "operations do not end: their memory is not freed");
                std::mem::forget(self);
                return None;
            }
            std::thread::sleep(BACK_OFF);
        }
        drop(self.parts.net.take());
        self.parts.connector.close(bootstrap);
        None
    }
}

impl StreamMachine for Cuda {
    type Stream<'s> = StreamRef<'s>;

    fn raw(stream: StreamRef<'_>) -> RawQueue {
        stream.raw().cast()
    }

    fn ordinal_of(stream: StreamRef<'_>) -> u32 {
        stream.device().ordinal()
    }

    fn synchronize(stream: StreamRef<'_>) -> Result<(), CudaError> {
        stream.synchronize()
    }
}

impl GroupMachine for Cuda {
    const GROUP_MAX: usize = 128;

    /// Connects, and loads the kernels of all calls, before any communicator of the thread enqueues: the driver may make loading
    /// wait for running kernels.
    unsafe fn run_together(jobs: &mut [Job<'_, Cuda>]) -> io::Result<()> {
        for job in jobs.iter_mut() {
            job.engine.plan(job.calls);
            job.result = job.engine.prepare(job.calls);
        }
        // Ranks of the others wait for this one, whatever has become of one communicator.
        for job in jobs.iter_mut().filter(|job| job.result.is_ok()) {
            // SAFETY: obligation 1.
            job.result = unsafe { job.engine.run_planned(job.calls, job.queues) };
        }
        Ok(())
    }

    /// Streams order calls: an engine that cannot be had is in use.
    unsafe fn run_behind(jobs: &mut [Behind<'_, Cuda>]) {
        let busy = BehindError::Start(StartError::Occupied(Occupied::Busy));
        jobs.iter_mut().for_each(|job| job.result = Err(busy.clone()));
    }
}

impl Cuda {
    /// Whether every enqueued operation has ended, and, unless overdue, whether the proxy has sent everything.
    fn is_done(&self, is_overdue: bool) -> bool {
        // An error means that the context is broken: no kernel runs any more.
        let has_ended =
            self.order.is_done().unwrap_or(true) && self.one_sided.as_ref().is_none_or(OneSided::is_done);
        // A stopped proxy leaves orders incomplete.
        let gives_up = is_overdue || self.parts.health.is_stopped();
        has_ended && (gives_up || self.parts.net.as_ref().is_none_or(NetProxy::is_done))
    }
}

/// How long a kernel may take to see the abort, with the other work on its stream.
const ABORT_TIME: Duration = Duration::from_secs(10);
