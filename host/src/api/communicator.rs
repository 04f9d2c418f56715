//! One rank's communicator.

use super::config::Config;
use super::error::{ArgumentError, DeviceError, Error};
use super::farewell;
use super::handle::CommHandle;
use super::init::Init;
use super::membership::Membership;
use super::memory::{MemoryReport, MemoryUse};
use super::pending::Pending;
use crate::gpu::KernelError;
use crate::launch::in_flight;
use crate::launch::{
    Behind, BehindError, Engine, EngineCell, Fault, Occupied, RawCall, RawQueue, RunError, StartError,
};
use crate::machine::cpu::Cpu;
use crate::machine::cuda::Cuda;
use crate::plan::Call;
use crate::plan::tuning::{Explanation, TUNED};
use oxccl_shared::abi::{DataType, Func, Rank, RedOp};
use std::cell::{RefCell, RefMut};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One rank of a communicator on CPUs.
///
/// Every rank makes the same collective calls in the same order. A call returns when this rank's part is complete:
/// its output is written and its input may be changed. [`Communicator::overlap`] and [`Communicator::start`] start operations that are in
/// flight while the thread computes. A communicator may move between threads, but only one thread
/// at a time may use it. Any thread may use a [`CommHandle`].
///
/// # Errors of every operation
/// - [`Error::Argument`]: refused before anything was sent; other ranks wait for the corrected call.
/// - [`Error::Operation`]: a rank died, left, aborted, made another call or made no progress before the timeout. The
///   error names the rank and the outstanding operation. The communicator then refuses every call with the same
///   fault; the buffers of the failed call have undefined content.
///
/// Dropping a communicator leaves it, when what is in flight is done; the other ranks are notified, not waited for.
///
/// # Forks
/// The rank belongs to the process that created it. A forked child may drop the communicator, which has no effect
/// then, and every other use is refused ([`ArgumentError::Forked`]). Children can create their own communicators. A child that has not called
/// `exec` holds the parent's connections open, so that a sudden death of the parent may remain undetected until the
/// child exits too.
pub type Communicator = Comm<Cpu>;

/// One rank of a communicator of GPUs.
///
/// Every rank makes the same collective calls in the same order. A call enqueues its kernel on a stream and returns; the stream's
/// order, events and synchronisation say when it is done, as for any other kernel. Operations of one communicator run one after
/// another, even on different streams. Calls may be captured into CUDA graphs; the program that launches a graph orders it among the
/// communicator's other operations. If some ranks are reached over a network, a graph runs a host function before each kernel, and
/// while the graph exists so do the communicator's other operations: destroy graphs that are no longer needed.
///
/// A thread that has several ranks adds the calls of all of them to one [`device_group`](super::device_group).
///
/// # Errors of every operation
/// - [`Error::Argument`]: refused before anything was enqueued.
/// - [`Error::Operation`]: a rank died, left, aborted, made another call or stayed silent past the timeout. A kernel that waits
///   for such a rank ends by itself; the call after it, [`DeviceCommunicator::async_error`] and
///   [`DeviceCommunicator::synchronize`] say why. Buffers of operations since then hold anything.
/// - [`Error::Device`]: a GPU, its driver or its kernels. A call that the driver refuses is not made, and may be repeated. Where it refuses a
///   part of a group, or a collective by copy engines, the communicator fails ([`Fault::Gpu`]): other ranks have or wait for the rest.
///
/// Dropping a communicator waits for its enqueued operations, then leaves. Graphs that contain its operations must not be launched
/// afterwards.
pub type DeviceCommunicator = Comm<Cuda>;

/// One rank of a communicator on the machine `M`: see [`Communicator`] for CPUs and [`DeviceCommunicator`] for GPUs.
pub struct Comm<M: Init> {
    /// Before the engine, so that it notifies the other ranks before the engine's memory is freed.
    pub(super) member: Membership,
    pub(super) config: Config,
    unit: M::Unit,
    memory: MemoryUse,
    pub(super) device: M::Device,
    pub(super) kept: RefCell<M::Kept>,
    /// Of one thread at a time: `kept`, a `RefCell`, makes the type `!Sync`. `None` only while it is being dropped.
    cell: Option<Arc<EngineCell<M>>>,
}

impl<M: Init> Comm<M> {
    pub(super) fn new(
        member: Membership,
        (config, unit): (Config, M::Unit),
        memory: MemoryUse,
        engine: Engine<M>,
        device: M::Device,
    ) -> Comm<M> {
        let (kept, cell) = (RefCell::default(), Some(Arc::new(EngineCell::new(engine))));
        Comm { member, config, unit, memory, device, kept, cell }
    }

    /// This rank, `0..size()`.
    pub fn rank(&self) -> u32 {
        self.member.rank.0
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.member.nranks
    }

    /// Explains how an operation of `count` elements would run: the excluded candidates, the model's time of each
    /// candidate, and the policy that decided. `None` for operations that consist of messages.
    ///
    /// # Errors
    /// [`ArgumentError::Busy`] inside a group's end and while operations are in flight.
    pub fn explain(
        &self,
        func: Func,
        dtype: DataType,
        count: u64,
    ) -> Result<Option<Explanation>, ArgumentError> {
        self.explain_with(func, dtype, RedOp::Sum, count)
    }

    /// As [`Self::explain`], with another operator than the sum: in-network reduction may support some operators
    /// only.
    ///
    /// # Errors
    /// As there.
    pub fn explain_with(
        &self,
        func: Func,
        dtype: DataType,
        op: RedOp,
        count: u64,
    ) -> Result<Option<Explanation>, ArgumentError> {
        let call = Call { func, dtype, op, root: Rank(0), count };
        Ok(TUNED.contains(&func).then_some(self.engine()?.machine().explain(&call)))
    }

    /// The memory that it has now: on GPUs, of the GPU.
    pub fn memory(&self) -> MemoryReport {
        (self.memory)()
    }

    /// For each channel of the rings, the ranks in ring order; the same on every rank.
    pub fn rings(&self) -> &[Vec<Rank>] {
        &self.member.rings
    }

    /// A handle with which other threads can watch and abort this communicator.
    pub fn handle(&self) -> CommHandle {
        self.member.handle.clone()
    }

    /// Aborts the communicator: on this rank, where waiting kernels stop, and on all others as soon as they receive
    /// the notification.
    pub fn abort(&self) {
        self.member.handle.abort();
    }

    /// The communicator's error, if it has failed: the one that operations return, available without an operation.
    pub fn async_error(&self) -> Option<Error> {
        self.member.handle.async_error()
    }

    /// Whether the rank is this process's, and not that of one that forked it.
    fn is_ours(&self) -> Result<(), ArgumentError> {
        if self.cell().origin().is_here() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(&self) -> ArgumentError {
        ArgumentError::forked(self.member.rank, self.cell().origin())
    }

    /// Whether its ranks can still agree on something.
    ///
    /// # Errors
    /// The communicator's, unless it was revoked.
    pub(super) fn can_regroup(&self) -> Result<(), Error> {
        self.is_ours()?;
        match self.async_error() {
            Some(error) if !self.member.handle.is_revoked() => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether some of its ranks can make another communicator: whatever stopped it, unless this rank did so itself for good, or its
    /// machine is broken.
    ///
    /// # Errors
    /// The communicator's.
    pub(super) fn can_shrink(&self) -> Result<(), Error> {
        self.is_ours()?;
        match self.async_error() {
            Some(Error::Operation(error)) => match error.fault() {
                Fault::Aborted | Fault::Panicked | Fault::Gpu { .. } => Err(Error::Operation(error)),
                _ => Ok(()),
            },
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The ranks that are known to be gone, by number: their process or host has ended, or they have left.
    pub fn gone(&self) -> Vec<u32> {
        if self.is_ours().is_err() {
            return Vec::new();
        }
        self.member.watch().bootstrap().gone().into_iter().map(|rank| rank.0).collect()
    }

    /// Leaves in order: waits until the operations of all ranks are done, then until all ranks have called it, and frees everything.
    /// Unlike a drop it says how that went. Ranks that share a thread use [`Self::finalize_all`].
    ///
    /// # Errors
    /// [`Error::Operation`]: the communicator had failed, or fails by now; another rank waits for this one's part in an operation
    /// ([`Fault::FinalizedEarly`]); the ranks' collectives were not the same ([`Fault::CallsDiffer`]); a message was sent and never received
    /// ([`Fault::MessagesDiffer`]; a warning alone where all ranks together had messages with more than 262,144 others, as 513 ranks have of
    /// which each sends to each). [`Error::Bootstrap`]: a rank did not call it.
    pub fn finalize(self) -> Result<(), Error> {
        self.is_ours()?;
        M::settle(self.cell(), false);
        if in_flight::any() {
            // Those of other communicators go on meanwhile.
            return self.start_finalize()?.wait();
        }
        let drained = match self.engine() {
            Ok(engine) => engine.machine().drain(),
            Err(busy) => return Err(busy.into()),
        };
        drained.map_err(|outstanding| self.member.operation_error(outstanding))?;
        // Splits that were started before meet first: the ranks would take one meeting for the other.
        let turn = self.member.splits.next();
        turn.wait();
        let (health, calls, replays) = match self.engine() {
            Ok(engine) => {
                let machine = engine.machine();
                (machine.health().clone(), engine.collectives(), machine.replays_calls())
            }
            Err(busy) => return Err(busy.into()),
        };
        farewell::meet(&self.member, &health, calls, replays)
    }

    /// As [`Self::finalize`], on a thread of its own. Dropping what is returned aborts the communicator.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start_finalize(self) -> Result<Pending<()>, Error> {
        self.is_ours()?;
        Pending::start(self.handle(), move |_| self.finalize())
    }

    /// As [`Self::finalize`], for all ranks that a thread has, at the same time.
    ///
    /// # Errors
    /// Of the first rank that has one.
    pub fn finalize_all(ranks: impl IntoIterator<Item = Comm<M>>) -> Result<(), Error> {
        let started: Vec<_> = ranks.into_iter().map(Comm::start_finalize).collect();
        let ended: Vec<_> = started.into_iter().map(|ending| ending.and_then(Pending::wait)).collect();
        ended.into_iter().collect()
    }

    /// Which unit of the machine this rank has.
    pub(super) fn unit(&self) -> M::Unit {
        self.unit
    }

    pub(super) fn cell(&self) -> &Arc<EngineCell<M>> {
        self.cell.as_ref().expect("a communicator that is not being dropped has its engine")
    }

    #[inline]
    pub(super) fn engine(&self) -> Result<RefMut<'_, Engine<M>>, ArgumentError> {
        self.cell().enter().map_err(|occupied| self.occupied(occupied))
    }

    #[cold]
    pub(super) fn occupied(&self, occupied: Occupied) -> ArgumentError {
        let rank = self.member.rank;
        match occupied {
            Occupied::Elsewhere => ArgumentError::OtherThread { rank },
            Occupied::Forked => self.forked(),
            Occupied::InFlight | Occupied::Busy => ArgumentError::Busy { rank },
        }
    }

    #[cold]
    pub(super) fn not_started(&self, error: StartError) -> ArgumentError {
        let rank = self.member.rank;
        match error {
            StartError::Occupied(occupied) => self.occupied(occupied),
            StartError::TooMany { max } => ArgumentError::InFlight { rank, max },
            StartError::Memory { errno } => ArgumentError::GroupMemory { communicators: 1, errno },
        }
    }

    /// Runs calls whose arguments have been checked.
    ///
    /// # Safety
    /// 1. As [`Engine::run`].
    #[inline]
    pub(super) unsafe fn run(&self, calls: &[RawCall], queues: &[RawQueue]) -> Result<(), Error> {
        match self.cell().enter() {
            // SAFETY: obligation 1.
            Ok(mut engine) => unsafe { engine.run(calls, queues) }.map_err(|error| self.error(error)),
            // SAFETY: obligation 1.
            Err(Occupied::InFlight) => unsafe { self.run_behind(calls) },
            Err(occupied) => Err(self.occupied(occupied).into()),
        }
    }

    /// Runs them behind those in flight.
    ///
    /// # Safety
    /// 1. As [`Self::run`].
    #[cold]
    unsafe fn run_behind(&self, calls: &[RawCall]) -> Result<(), Error> {
        let mut jobs = [Behind { cell: self.cell(), calls, result: Ok(()) }];
        // SAFETY: obligation 1.
        unsafe { M::run_behind(&mut jobs) };
        let [job] = jobs;
        self.behind(job.result)
    }

    pub(super) fn behind(&self, result: Result<(), BehindError>) -> Result<(), Error> {
        result.map_err(|error| match error {
            BehindError::Start(error) => self.not_started(error).into(),
            BehindError::Run(error) => self.error(error),
        })
    }

    pub(super) fn error(&self, error: RunError) -> Error {
        let (rank, nranks) = (self.member.rank, self.size());
        let source = match error {
            RunError::Stopped(outstanding) => return self.member.operation_error(outstanding),
            RunError::Kernel(error) => error,
            RunError::Gpu(error) => KernelError::Cuda(error),
        };
        DeviceError { rank, nranks, source: Box::new(source) }.into()
    }
}

impl<M: Init> fmt::Debug for Comm<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Comm");
        out.field("rank", &self.rank()).field("nranks", &self.size()).field("unit", &self.unit);
        out.field("state", &self.handle().state()).finish_non_exhaustive()
    }
}

impl<M: Init> Drop for Comm<M> {
    fn drop(&mut self) {
        let Some(mut cell) = self.cell.take() else { return };
        if !cell.origin().is_here() {
            // All of it is the parent's: threads, connections, files, and locks that its threads may have held at the fork.
            std::mem::forget((cell, self.kept.take()));
            return self.member.forget();
        }
        if !M::settle(&cell, std::thread::panicking()) {
            // Its operations are in flight on another thread, where they end with this; their memory stays.
            self.member.handle.abort();
            std::mem::forget(cell);
            return;
        }
        let engine = loop {
            match cell.into_engine() {
                Ok(engine) => break engine,
                // The thread that had the last operation in flight is about to let it go.
                Err(shared) => cell = shared,
            }
            std::thread::sleep(Duration::from_micros(20));
        };
        let machine = engine.into_machine().close(self.member.watch().bootstrap());
        self.cell = machine.map(|machine| Arc::new(EngineCell::new(Engine::new(machine))));
    }
}
