//! A rank's membership in a group of ranks.

use super::CommunicatorBuilder;
use super::builder::assemble;
use super::config::Config;
use super::error::{ArgumentError, Error};
use super::membership::{AbortHandle, Membership};
use super::memory::MemoryReport;
use super::split;
use crate::bootstrap::UniqueId;
use crate::launch::{Engine, Outstanding, RawCall};
use crate::plan::Call;
use crate::plan::tuning::{Explanation, TUNED};
use oxccl_shared::abi::{DataType, Func, RedOp};
use std::cell::{RefCell, RefMut};

/// One rank of a communicator.
///
/// Every rank makes the same collective calls in the same order. A call returns when this rank's part is done: its output is
/// complete and its input may be changed. A communicator may move between threads but is used by one at a time;
/// [`AbortHandle`]s may be used by any.
///
/// # Errors of every operation
/// - [`Error::Argument`]: refused before anything was sent; other ranks wait for the corrected call.
/// - [`Error::Operation`]: a rank died, left, aborted, made another call or stayed silent past the timeout. It names the rank
///   and what was outstanding. The communicator then refuses everything with the same fault; buffers of the failed call hold
///   anything.
///
/// Dropping a communicator says goodbye to the others; it does not wait for them.
///
/// # Forks
/// The rank stays with the process that made it: a forked child may drop the communicator, which does nothing then, and must
/// not use it otherwise. Children can make communicators of their own. While a child that has not called `exec` lives it holds
/// the parent's connections open, so that the parent's sudden death may go unnoticed until the child ends too.
pub struct Communicator {
    /// First, so that it says goodbye before the engine's memory goes.
    pub(super) member: Membership,
    pub(super) config: Config,
    pub(super) memory: MemoryReport,
    /// `RefCell` also makes the type `!Sync`: one thread at a time.
    engine: RefCell<Engine>,
}

impl Communicator {
    /// Starts setting up a communicator.
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    /// Joins as `rank` of `nranks` with the environment's settings. Returns when all ranks have joined.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument` and `Operation`.
    pub fn init(id: &UniqueId, rank: u32, nranks: u32) -> Result<Communicator, Error> {
        Communicator::builder().unique_id(*id).rank(rank).ranks(nranks).build()
    }

    /// Joins as the rank that mpirun, Slurm or torchrun says this process is (see [`super::launcher`]).
    ///
    /// # Errors
    /// Any [`Error`] but `Argument` and `Operation`; a configuration error when no launcher is recognised.
    pub fn from_env() -> Result<Communicator, Error> {
        Communicator::builder().from_env()?.build()
    }

    pub(super) fn new(
        member: Membership,
        config: Config,
        memory: MemoryReport,
        engine: Engine,
    ) -> Communicator {
        Communicator { member, config, memory, engine: RefCell::new(engine) }
    }

    /// This rank, `0..size()`.
    pub fn rank(&self) -> u32 {
        self.member.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.member.nranks
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
        self.explain_with(func, dtype, RedOp::Sum, count)
    }

    /// As [`Self::explain`], with another operator than the sum: a network that reduces may have some and not others.
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
        let call = Call { func, dtype, op, root: 0, count };
        Ok(TUNED.contains(&func).then_some(self.engine()?.facts().explain(&call)))
    }

    /// Memory reserved at init.
    pub fn memory(&self) -> &MemoryReport {
        &self.memory
    }

    /// For each channel that rings use, the ranks in the order of its ring; the same on every rank.
    pub fn rings(&self) -> &[Vec<u32>] {
        &self.member.rings
    }

    /// A handle that other threads may use to end this communicator's operations.
    pub fn abort_handle(&self) -> AbortHandle {
        self.member.abort_handle()
    }

    /// Ends the communicator: on this rank and, as soon as they hear of it, on all others.
    pub fn abort(&self) {
        self.abort_handle().abort();
    }

    /// What has gone wrong, if anything: the error that operations return, as soon as it is known and without an operation.
    pub fn async_error(&self) -> Option<Error> {
        self.member.health.fault().map(|outstanding| self.operation_error(outstanding))
    }

    /// Splits the ranks by `color` into new communicators, each ordered by `key`, then by rank here. `None` joins none and gets
    /// none. Every rank must call it.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument`.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>, Error> {
        if let Some(error) = self.async_error() {
            return Err(error);
        }
        let child = split::split(&self.member, color, key)?;
        child.map(|bootstrap| assemble(bootstrap, split::settings(&self.config))).transpose()
    }

    pub(super) fn operation_error(&self, outstanding: Outstanding) -> Error {
        self.member.operation_error(outstanding)
    }

    pub(super) fn engine(&self) -> Result<RefMut<'_, Engine>, ArgumentError> {
        self.engine.try_borrow_mut().map_err(|_| ArgumentError::Busy { rank: self.rank() })
    }

    /// Runs calls whose arguments have been checked.
    ///
    /// # Safety
    /// 1. As [`Engine::run`].
    pub(super) unsafe fn run(&self, calls: &[RawCall]) -> Result<(), Error> {
        // SAFETY: obligation 1.
        let result = unsafe { self.engine()?.run(calls) };
        result.map_err(|outstanding| self.operation_error(outstanding))
    }
}
