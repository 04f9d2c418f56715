//! What an engine runs calls on.

use super::call::RawCall;
use super::fault::Outstanding;
use super::health::Health;
use super::messages::{Message, OwnCopy};
use super::probe::Probe;
use crate::bootstrap::Bootstrap;
use crate::gpu::{CudaError, KernelError};
use crate::plan::tuning::Explanation;
use crate::plan::{Call, CallPlan, CallRecord, Facts, Forced, Placement, Plan, SymmetricPlan};
use oxccl_shared::abi::Rank;
use std::ffi::c_void;
use std::sync::Arc;
use thiserror::Error;

/// Where calls go, without a lifetime: on GPUs a stream, on CPUs the fiber that yields while a kernel waits, or null.
pub type RawQueue = *mut c_void;

/// Why a call did not run, or was not enqueued.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RunError {
    /// The communicator has stopped, or stops now.
    #[error("{0}")]
    Stopped(Outstanding),
    /// There is no kernel for it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The GPU's driver refused it.
    #[error(transparent)]
    Gpu(#[from] CudaError),
}

/// A machine: what one rank's kernels run on. The [`Engine`](super::Engine) decides what runs and in which order; a machine runs it.
pub trait Machine: Sized + Send + 'static {
    /// What is in flight on it while its engine's calls have returned and go on; of machines on whose streams calls do so, nothing.
    type Flight;

    /// Whether a call is done when it has returned.
    const RETURNS_DONE: bool;

    /// Nothing in flight yet.
    fn flight(&self) -> Self::Flight;

    /// This rank.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn nranks(&self) -> u32;

    /// The communicator's health.
    fn health(&self) -> &Arc<Health>;

    /// How a call would be carried out, and why so.
    fn explain(&self, call: &Call) -> Explanation;

    /// What its plans depend on.
    fn facts(&self) -> &Facts;

    /// Whether the communicator can go on.
    ///
    /// # Errors
    /// Its fault.
    #[inline]
    fn check(&self) -> Result<(), Outstanding> {
        self.health().fault().map_or(Ok(()), Err)
    }

    /// Whether [`Self::check`] need be asked. Its answer is long: to copy it on the stack of each call waits for the stores of the call
    /// before, which wait for the lines of a slot (docs/measurements/2026-11-26-cpu-middle.md).
    #[inline(always)]
    fn may_be_stopped(&self) -> bool {
        self.health().is_stopped()
    }

    /// Asks the same from any thread.
    fn probe(&self) -> Arc<dyn Probe> {
        self.health().clone()
    }

    /// Waits until all calls are done, at most as long as one may take.
    ///
    /// # Errors
    /// The communicator's fault.
    fn drain(&self) -> Result<(), Outstanding> {
        self.check()
    }

    /// Whether calls may be made more often than they were called, by graphs.
    fn replays_calls(&self) -> bool {
        false
    }

    /// What becomes of the communicator by this error.
    fn stopped_by(&self, error: RunError) -> RunError {
        error
    }

    /// How a call is carried out: always the same way.
    fn plan(&self, call: &Call, forced: Option<Forced>) -> CallPlan;

    /// Whether plans depend on where buffers lie, too. Once it is true it stays so.
    #[inline]
    fn sees_buffers(&self) -> bool {
        false
    }

    /// The plan of a call on its buffers, where [`Self::sees_buffers`].
    fn plan_placed(&self, _raw: &RawCall, plan: CallPlan) -> CallPlan {
        plan
    }

    /// The calls were enqueued; `are_new` if others than these were counted last. Returns whether it counted them. Only where calls return
    /// before they are done: elsewhere what moves is counted.
    #[inline]
    fn count(&mut self, _calls: &[RawCall], _plans: &[CallPlan], _are_new: bool) -> bool {
        true
    }

    /// Compares what this rank plans by its buffers with what other ranks plan by theirs, once for each call, before it runs.
    ///
    /// # Errors
    /// [`RunError::Stopped`]: a rank plans otherwise.
    #[inline]
    fn compare(&mut self, _calls: &[RawCall], _plans: &[CallPlan]) -> Result<(), RunError> {
        Ok(())
    }

    /// Makes the connections that these calls need and that are not there. It waits for no other rank's calls.
    ///
    /// # Errors
    /// [`RunError::Stopped`]: the communicator ends by it.
    fn connect_for(&mut self, _calls: &[RawCall], _plans: &[CallPlan]) -> Result<(), RunError> {
        Ok(())
    }

    /// Loads what these plans need, before any communicator of the thread runs.
    ///
    /// # Errors
    /// [`RunError`].
    fn prepare(&mut self, _plans: &[CallPlan]) -> Result<(), RunError> {
        Ok(())
    }

    /// Runs `body`, whose work goes to the first of `queues`. It starts after the communicator's earlier work and after earlier work on
    /// the other queues; later work on these starts after it. `plans` are those of the calls that `body` runs.
    ///
    /// # Errors
    /// Those of `body`, and the machine's own.
    ///
    /// # Safety
    /// 1. The queues are of this machine and live until the work is done.
    unsafe fn within(
        &mut self,
        queues: &[RawQueue],
        plans: &[CallPlan],
        body: impl FnOnce(&mut Self) -> Result<(), RunError>,
    ) -> Result<(), RunError>;

    /// A call begins.
    fn begins(&mut self, _record: &CallRecord) {}

    /// Runs a collective as planned, whose slots carry `tag`.
    ///
    /// # Errors
    /// [`RunError`].
    ///
    /// # Safety
    /// 1. Within [`Self::within`], on its first queue.
    /// 2. The call's buffers are valid for what its function reads and writes until the work is done, and overlap only as `CollWork`
    ///    allows.
    unsafe fn collective(
        &mut self,
        raw: &RawCall,
        plan: &Plan,
        tag: u32,
        queue: RawQueue,
    ) -> Result<(), RunError>;

    /// Runs a collective by copy engines. Only of machines that [see buffers](Self::sees_buffers), whose plans name it.
    ///
    /// # Errors
    /// [`RunError`].
    ///
    /// # Safety
    /// 1. As for [`Self::collective`].
    /// 2. The placed buffer may be used by the other ranks meanwhile.
    unsafe fn copies(
        &mut self,
        _raw: &RawCall,
        _placement: Placement,
        _queue: RawQueue,
    ) -> Result<(), RunError> {
        unreachable!("no plan of a machine without copy engines names them")
    }

    /// Runs a collective by a kernel that reaches the other ranks' buffers. Only of machines that [see buffers](Self::sees_buffers), whose
    /// plans name it.
    ///
    /// # Errors
    /// [`RunError`].
    ///
    /// # Safety
    /// 1. As for [`Self::collective`].
    /// 2. The placed buffers may be used by the other ranks meanwhile.
    unsafe fn symmetric(
        &mut self,
        _raw: &RawCall,
        _plan: &SymmetricPlan,
        _tag: u32,
        _queue: RawQueue,
    ) -> Result<(), RunError> {
        unreachable!("no plan of a machine without symmetric windows names it")
    }

    /// Copies between buffers of this rank that are apart or the same.
    ///
    /// # Errors
    /// [`RunError`].
    ///
    /// # Safety
    /// 1. As for [`Self::collective`]: both are valid for the length.
    unsafe fn copy(
        &mut self,
        from: *const u8,
        to: *mut u8,
        len_bytes: usize,
        queue: RawQueue,
    ) -> Result<(), RunError>;

    /// Carries messages to and from other ranks, each with the tag of its slots, and this rank's own, all at once.
    ///
    /// # Errors
    /// [`RunError`].
    ///
    /// # Safety
    /// 1. As for [`Self::collective`].
    unsafe fn messages(
        &mut self,
        messages: &[(Message, u32)],
        own: &[OwnCopy],
        queue: RawQueue,
    ) -> Result<(), RunError>;

    /// A group's sends and receives of a rank to itself do not match: the communicator fails.
    fn own_messages_differ(&mut self) -> RunError;

    /// Ends what runs, before the rank says goodbye. What is returned is dropped after the goodbye.
    fn close(self, _bootstrap: &Bootstrap) -> Option<Self> {
        Some(self)
    }
}

/// A machine whose calls go to streams, and return before they are done.
pub trait StreamMachine: Machine {
    /// A user's stream.
    type Stream<'s>: Copy;

    /// The stream without its lifetime.
    fn raw(stream: Self::Stream<'_>) -> RawQueue;

    /// The device that the stream is of, by its number in this process.
    fn ordinal_of(stream: Self::Stream<'_>) -> u32;

    /// Waits until everything on the stream is done.
    ///
    /// # Errors
    /// The driver's.
    fn synchronize(stream: Self::Stream<'_>) -> Result<(), CudaError>;
}
