//! A GPU's membership in a group of GPUs.

use super::builder::{DeviceCommunicatorBuilder, assemble};
use crate::api::Config;
use crate::api::collectives::Untyped;
use crate::api::error::{ArgumentError, DeviceError, Error};
use crate::api::membership::{AbortHandle, Membership};
use crate::api::memory::MemoryReport;
use crate::api::split;
use crate::bootstrap::UniqueId;
use crate::launch::RawCall;
use crate::machine::cuda::driver::{Device, StreamRef};
use crate::machine::cuda::{DeviceEngine, EnqueueError, KernelError};
use crate::plan::Call;
use crate::plan::tuning::{Explanation, TUNED};
use oxccl_shared::abi::{DataType, Func, RedOp};
use std::cell::{RefCell, RefMut};
use std::net::Ipv4Addr;

/// One rank of a communicator of GPUs.
///
/// Every rank makes the same collective calls in the same order. A call puts its kernel on a stream and returns; the stream's
/// order, events and synchronisation say when it is done, as for any other kernel. Operations of one communicator run one after
/// another, whichever streams they are put on. Calls may be captured into CUDA graphs; whoever launches a graph orders it among the
/// communicator's other operations. Where a network leads to some ranks, a graph has the host do something before each kernel, and as
/// long as the graph exists so have the communicator's other operations: destroy graphs that are not needed any more.
///
/// A thread that has several ranks puts the calls of all of them into a [`super::device_group`].
///
/// # Errors of every operation
/// - [`Error::Argument`]: refused before anything was put on the stream.
/// - [`Error::Operation`]: a rank died, left, aborted, made another call or stayed silent past the timeout. A kernel that waits
///   for such a rank ends by itself; the call after it, [`DeviceCommunicator::async_error`] and
///   [`DeviceCommunicator::synchronize`] say why. Buffers of operations since then hold anything.
/// - [`Error::Device`]: a GPU, its driver or its kernels.
///
/// Dropping a communicator waits for its operations on streams, then says goodbye to the others. Graphs that contain its operations
/// must not be launched any more by then.
pub struct DeviceCommunicator {
    member: Membership,
    config: Config,
    memory: MemoryReport,
    /// `RefCell` also makes the type `!Sync`: one thread at a time. `None` only while it is being dropped.
    engine: Option<RefCell<DeviceEngine>>,
    device: Device,
}

impl DeviceCommunicator {
    /// Starts setting up a communicator.
    pub fn builder() -> DeviceCommunicatorBuilder {
        DeviceCommunicatorBuilder::default()
    }

    /// Joins as the rank that mpirun, Slurm or torchrun says this process is, with the GPU of that number on its host.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument` and `Operation`; a configuration error when no launcher is recognised.
    pub fn from_env() -> Result<DeviceCommunicator, Error> {
        DeviceCommunicator::builder().from_env()?.build()
    }

    /// A communicator of GPUs of this process, all of whose ranks the calling thread gets, in the order of `ordinals`.
    ///
    /// # Errors
    /// That of the first rank which failed by itself.
    pub fn init_all(ordinals: &[u32]) -> Result<Vec<DeviceCommunicator>, Error> {
        let config = Config::from_env()?;
        DeviceCommunicator::init_all_with(ordinals, &config)
    }

    /// As [`Self::init_all`], with these settings instead of the environment's.
    ///
    /// # Errors
    /// As [`Self::init_all`].
    pub fn init_all_with(ordinals: &[u32], config: &Config) -> Result<Vec<DeviceCommunicator>, Error> {
        let mut config = config.clone();
        // All ranks are here: no other interface is needed, and none need be there.
        config.bootstrap.bind_addr.get_or_insert(Ipv4Addr::LOCALHOST.into());
        let config = &config;
        let id = UniqueId::create(&config.bootstrap)?;
        let join = |(rank, ordinal): (usize, &u32)| {
            let builder = DeviceCommunicator::builder().unique_id(id).device(*ordinal);
            builder.rank(rank as u32).ranks(ordinals.len() as u32).config(config.clone()).build()
        };
        let joined: Vec<Result<DeviceCommunicator, Error>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                ordinals.iter().enumerate().map(|rank| scope.spawn(move || join(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("joining does not panic")).collect()
        });
        let is_own =
            |error: &Error| !matches!(error, Error::Connect(crate::channel::ConnectError::PeerFailed { .. }));
        let mut errors: Vec<&Error> = joined.iter().filter_map(|joined| joined.as_ref().err()).collect();
        errors.sort_by_key(|error| !is_own(error));
        match errors.first() {
            Some(error) => Err((*error).clone()),
            None => joined.into_iter().collect(),
        }
    }

    pub(super) fn new(
        member: Membership,
        config: Config,
        memory: MemoryReport,
        engine: DeviceEngine,
    ) -> DeviceCommunicator {
        let device = engine.device().clone();
        DeviceCommunicator { member, config, memory, engine: Some(RefCell::new(engine)), device }
    }

    /// This rank, `0..size()`.
    pub fn rank(&self) -> u32 {
        self.member.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.member.nranks
    }

    /// This rank's GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// For each channel that rings use, the ranks in the order of its ring; the same on every rank.
    pub fn rings(&self) -> &[Vec<u32>] {
        &self.member.rings
    }

    /// How an operation of `count` elements would be carried out, and why so: what was excluded, what each candidate takes by the model,
    /// and whose word decided. Nothing for operations that are made of messages.
    ///
    /// # Errors
    /// [`ArgumentError::Busy`] inside a group's end.
    pub fn explain(
        &self,
        func: Func,
        dtype: DataType,
        count: u64,
    ) -> Result<Option<Explanation>, ArgumentError> {
        let call = Call { func, dtype, op: RedOp::Sum, root: 0, count };
        Ok(TUNED.contains(&func).then_some(self.engine()?.facts().explain(&call)))
    }

    /// Memory of the GPU that was reserved at init.
    pub fn memory(&self) -> &MemoryReport {
        &self.memory
    }

    /// A handle that other threads may use to end this communicator's operations.
    pub fn abort_handle(&self) -> AbortHandle {
        self.member.abort_handle()
    }

    /// Ends the communicator: on this rank, where kernels stop that wait for others, and, as soon as they hear of it, on all
    /// others.
    pub fn abort(&self) {
        self.abort_handle().abort();
    }

    /// What has gone wrong, if anything: the error that operations return, as soon as it is known and without an operation.
    pub fn async_error(&self) -> Option<Error> {
        let checked = self.engine().map(|engine| engine.check());
        match checked {
            Ok(Err(outstanding)) => Some(self.member.operation_error(outstanding)),
            Ok(Ok(())) | Err(_) => None,
        }
    }

    /// Splits the ranks by `color` into new communicators of the same GPUs, each ordered by `key`, then by rank here. `None` joins none
    /// and gets none. Every rank must call it at the same time; ranks of one thread need a thread each for it.
    ///
    /// The new communicator has memory, channels and streams' order of its own, all for its own ranks: rings and trees are found anew
    /// among their GPUs, and a tuning file's table for their number is taken. Nothing that happens to it happens to this one, which can
    /// be used, split again or dropped meanwhile. What the user said of this one's ranks (`NCCL_RINGS`, `NCCL_GRAPH_FILE`, dumps) does
    /// not hold there.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument`. Of this communicator's ranks they name the number here until the new one's have found each other,
    /// then the number there.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<DeviceCommunicator>, Error> {
        if let Some(error) = self.async_error() {
            return Err(error);
        }
        let child = split::split(&self.member, color, key)?;
        let config = || split::settings(&self.config);
        child.map(|bootstrap| assemble(bootstrap, config(), self.device.ordinal())).transpose()
    }

    /// Waits until everything on the stream is done, and says whether it was done as it should.
    ///
    /// # Errors
    /// [`Error::Operation`], [`Error::Device`].
    pub fn synchronize(&self, stream: StreamRef<'_>) -> Result<(), Error> {
        let done = stream.synchronize();
        done.map_err(|error| self.error(self.stopped_by(error.into())))?;
        self.async_error().map_or(Ok(()), Err)
    }

    /// Puts a call on a stream. Its pointers are addresses in this GPU's memory, aligned to the elements' size.
    ///
    /// # Errors
    /// See [`DeviceCommunicator`].
    ///
    /// # Safety
    /// 1. `send` and `recv` are memory that this GPU can use, valid for the shapes of [`crate::Communicator`]'s operations, each where
    ///    its function uses it, until the stream has done the work.
    /// 2. `recv` equals `send` or, where one of them has n blocks and the other one, the one is this rank's block of the other;
    ///    or they do not overlap. All-to-all has no such form. Nobody else touches them meanwhile.
    /// 3. The stream is not destroyed before it has done the work.
    pub unsafe fn enqueue_untyped(&self, call: &Untyped, stream: StreamRef<'_>) -> Result<(), Error> {
        let call = self.check(call, stream)?;
        // SAFETY: obligations 1 to 3.
        unsafe { self.enqueue(std::slice::from_ref(&call), stream, std::iter::empty()) }
    }

    /// What comes behind it on the stream runs when every rank has called it and its stream has come to it.
    ///
    /// # Errors
    /// See [`DeviceCommunicator`].
    pub fn barrier(&self, stream: StreamRef<'_>) -> Result<(), Error> {
        // SAFETY: a barrier touches no buffer; a stream reference says that the stream lives, and the driver does what is on a stream
        // even if it is destroyed then.
        unsafe { self.enqueue_untyped(&Untyped::new(Func::Barrier, DataType::U8), stream) }
    }

    /// Checks a call's arguments.
    pub(super) fn check(&self, call: &Untyped, stream: StreamRef<'_>) -> Result<RawCall, ArgumentError> {
        let raw = call.check(self.rank(), self.size())?;
        let (device, of_stream) = (self.device.ordinal(), stream.device().ordinal());
        if device != of_stream {
            return Err(ArgumentError::StreamDevice { rank: self.rank(), device, stream: of_stream });
        }
        for (which, address) in [("send", call.send.addr()), ("receive", call.recv.addr())] {
            if !address.is_multiple_of(call.dtype.size_bytes()) {
                let (func, dtype, address) = (call.func, call.dtype, address as u64);
                return Err(ArgumentError::Unaligned { func, which, address, dtype });
            }
        }
        Ok(raw)
    }

    /// Puts calls on a stream whose arguments have been checked.
    ///
    /// # Safety
    /// 1. As [`DeviceEngine::enqueue`].
    pub(super) unsafe fn enqueue<'s>(
        &self,
        calls: &[RawCall],
        stream: StreamRef<'s>,
        others: impl Iterator<Item = StreamRef<'s>> + Clone,
    ) -> Result<(), Error> {
        // SAFETY: obligation 1.
        let result = unsafe { self.engine()?.enqueue(calls, stream, others) };
        result.map_err(|error| self.error(error))
    }

    /// Loads what calls need, before any communicator of the thread puts something on a stream.
    pub(super) fn prepare(&self, calls: &[RawCall]) -> Result<(), Error> {
        self.engine()?.prepare(calls).map_err(|error| self.error(error))
    }

    fn engine(&self) -> Result<RefMut<'_, DeviceEngine>, ArgumentError> {
        let engine = self.engine.as_ref().expect("a communicator that is not being dropped has its engine");
        engine.try_borrow_mut().map_err(|_| ArgumentError::Busy { rank: self.rank() })
    }

    fn stopped_by(&self, error: EnqueueError) -> EnqueueError {
        match self.engine() {
            Ok(engine) => engine.stopped_by(error),
            Err(_) => error,
        }
    }

    fn error(&self, error: EnqueueError) -> Error {
        let (rank, nranks) = (self.rank(), self.size());
        let source = match error {
            EnqueueError::Stopped(outstanding) => return self.member.operation_error(outstanding),
            EnqueueError::Kernel(error) => error,
            EnqueueError::Cuda(error) => KernelError::Cuda(error),
        };
        DeviceError { rank, nranks, source: Box::new(source) }.into()
    }
}

impl Drop for DeviceCommunicator {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.into_inner().close(self.member.watch().bootstrap());
        }
    }
}
