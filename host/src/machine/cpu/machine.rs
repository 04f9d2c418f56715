//! A rank's kernels on the caller's thread, as a [`Machine`].

use super::fiber::{self, GROUP_COMMUNICATORS_MAX};
use super::in_flight::{self, Flights, InFlight};
use super::state::Cpu;
use crate::launch::{
    Behind, EngineCell, Fault, GroupMachine, Health, Job, Machine, Message, OwnCopy, RawCall, RawQueue,
    RunError,
};
use crate::plan::tuning::Explanation;
use crate::plan::{Call, CallPlan, CallRecord, Facts, Forced, Plan};
use oxccl_device::gpu::Stop;
use oxccl_shared::abi::Rank;
use std::io;
use std::sync::Arc;

impl Machine for Cpu {
    type Flight = InFlight;
    const RETURNS_DONE: bool = true;

    fn flight(&self) -> InFlight {
        InFlight::new(self.parts.rank, self.health().clone(), self.queue.clone())
    }

    fn rank(&self) -> Rank {
        self.parts.rank
    }

    fn nranks(&self) -> u32 {
        self.parts.facts.nranks
    }

    fn health(&self) -> &Arc<Health> {
        self.parts.wait.health()
    }

    fn explain(&self, call: &Call) -> Explanation {
        self.parts.tuner.explain(&self.parts.facts, call)
    }

    fn facts(&self) -> &Facts {
        &self.parts.facts
    }

    fn plan(&self, call: &Call, forced: Option<Forced>) -> CallPlan {
        self.parts.tuner.plan(&self.parts.facts, call, forced)
    }

    #[inline]
    fn connect_for(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        if self.parts.far.is_some() { self.connect_far(calls, plans) } else { Ok(()) }
    }

    #[inline]
    unsafe fn within(
        &mut self,
        queues: &[RawQueue],
        _plans: &[CallPlan],
        body: impl FnOnce(&mut Self) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let fiber = queues[0];
        if !fiber.is_null() {
            self.parts.wait.enter_fiber(fiber.cast());
        }
        let guarded = FailsIfUnwound(self);
        let ran = body(guarded.0);
        let wait = &guarded.0.parts.wait;
        wait.leave_fiber();
        if ran.is_ok() {
            wait.end();
        }
        std::mem::forget(guarded);
        ran
    }

    #[inline]
    fn begins(&mut self, record: &CallRecord) {
        self.parts.wait.begin(record);
        self.parts.wait.health().begin_traffic();
    }

    unsafe fn collective(
        &mut self,
        raw: &RawCall,
        plan: &Plan,
        tag: u32,
        _queue: RawQueue,
    ) -> Result<(), RunError> {
        let ran = if self.is_brief_pair(raw, plan) {
            // SAFETY: (1) obligation 2; (2) as asked.
            unsafe { self.run_brief_pair(raw, plan, tag) }
        } else {
            // SAFETY: (1) obligation 2.
            unsafe { self.run_read_or_collective(raw, plan, tag) }
        };
        ran.map_err(|Stop| self.stopped())
    }

    unsafe fn copy(
        &mut self,
        from: *const u8,
        to: *mut u8,
        len_bytes: usize,
        _queue: RawQueue,
    ) -> Result<(), RunError> {
        // SAFETY: obligation 1.
        unsafe { std::ptr::copy(from, to, len_bytes) };
        Ok(())
    }

    unsafe fn messages(
        &mut self,
        messages: &[(Message, u32)],
        own: &[OwnCopy],
        _queue: RawQueue,
    ) -> Result<(), RunError> {
        for OwnCopy { from, to, len_bytes } in own {
            // SAFETY: obligation 1.
            unsafe { std::ptr::copy(*from, *to, *len_bytes) };
        }
        // SAFETY: (1) obligation 1.
        let ran = match unsafe { self.exchange(messages) } {
            // SAFETY: (1) obligation 1: nothing has been done.
            Ok(false) => unsafe { self.run_messages(messages) },
            ran => ran.map(drop),
        };
        ran.map_err(|Stop| self.stopped())
    }

    fn own_messages_differ(&mut self) -> RunError {
        self.parts.wait.fail(Fault::SelfMessages);
        self.stopped()
    }
}

impl GroupMachine for Cpu {
    const GROUP_MAX: usize = GROUP_COMMUNICATORS_MAX;

    unsafe fn run_together(jobs: &mut [Job<'_, Cpu>]) -> io::Result<()> {
        // SAFETY: obligation 1.
        unsafe { fiber::run_together(jobs) }
    }

    unsafe fn run_behind(jobs: &mut [Behind<'_, Cpu>]) {
        // SAFETY: obligation 1.
        unsafe { in_flight::run_behind(jobs) };
    }

    fn settle(cell: &Arc<EngineCell<Cpu>>, at_once: bool) -> bool {
        Flights(cell).settle(at_once)
    }
}

/// An operation that is under way. If it panics, slots are half done, and orders of the proxy: the communicator runs no other operation.
/// Catching the panic instead of dropping this costs 40 instructions where there is none.
struct FailsIfUnwound<'a>(&'a mut Cpu);

impl Drop for FailsIfUnwound<'_> {
    #[cold]
    fn drop(&mut self) {
        let wait = &self.0.parts.wait;
        wait.leave_fiber();
        wait.fail(Fault::Panicked);
        wait.give_up();
    }
}
