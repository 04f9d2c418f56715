//! A rank's membership in a group of ranks.

use super::CommunicatorBuilder;
use super::config::Config;
use super::error::{ArgumentError, Error, OperationError};
use super::memory::MemoryReport;
use crate::bootstrap::{UniqueId, Watch};
use crate::launch::{Engine, Fault, Health, Outstanding, RawCall};
use std::cell::{Cell, RefCell, RefMut};
use std::sync::{Arc, Weak};

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
pub struct Communicator {
    pub(super) rank: u32,
    pub(super) nranks: u32,
    pub(super) config: Config,
    pub(super) health: Arc<Health>,
    pub(super) memory: MemoryReport,
    /// `RefCell` also makes the type `!Sync`: one thread at a time.
    engine: RefCell<Engine>,
    /// Owned here alone, so that dropping the communicator can say goodbye; `None` only while it is being dropped.
    watch: Option<Arc<Watch>>,
    /// Splits so far: their number tells them apart on the wire.
    splits: Cell<u64>,
}

/// Ends a communicator's operations from any thread.
#[derive(Clone)]
pub struct AbortHandle {
    health: Arc<Health>,
    watch: Weak<Watch>,
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
        (rank, nranks): (u32, u32),
        config: Config,
        memory: MemoryReport,
        engine: Engine,
        watch: Arc<Watch>,
    ) -> Communicator {
        let health = engine.health().clone();
        Communicator {
            rank,
            nranks,
            config,
            health,
            memory,
            engine: RefCell::new(engine),
            watch: Some(watch),
            splits: Cell::new(0),
        }
    }

    /// This rank, `0..size()`.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.nranks
    }

    /// Memory reserved at init.
    pub fn memory(&self) -> &MemoryReport {
        &self.memory
    }

    /// A handle that other threads may use to end this communicator's operations.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle {
            health: self.health.clone(),
            watch: self.watch.as_ref().map(Arc::downgrade).unwrap_or_default(),
        }
    }

    /// Ends the communicator: on this rank and, as soon as they hear of it, on all others.
    pub fn abort(&self) {
        self.abort_handle().abort();
    }

    /// What has gone wrong, if anything: the error that operations return, as soon as it is known and without an operation.
    pub fn async_error(&self) -> Option<Error> {
        self.health.fault().map(|outstanding| self.operation_error(outstanding))
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
        super::builder::split(self, color, key)
    }

    pub(super) fn watch(&self) -> &Watch {
        self.watch.as_ref().expect("a communicator that is not being dropped has its watch")
    }

    pub(super) fn next_split(&self) -> u64 {
        self.splits.set(self.splits.get() + 1);
        self.splits.get()
    }

    pub(super) fn operation_error(&self, outstanding: Outstanding) -> Error {
        OperationError { rank: self.rank, nranks: self.nranks, outstanding }.into()
    }

    pub(super) fn engine(&self) -> Result<RefMut<'_, Engine>, ArgumentError> {
        self.engine.try_borrow_mut().map_err(|_| ArgumentError::Busy { rank: self.rank })
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

impl Drop for Communicator {
    /// Says goodbye. A thread that panics does not: the other ranks hear that this one aborted.
    fn drop(&mut self) {
        let Some(mut shared) = self.watch.take() else { return };
        // An abort handle or the monitor may be speaking through it this very moment, and is soon done.
        let watch = loop {
            match Arc::try_unwrap(shared) {
                Ok(watch) => break watch,
                Err(still_shared) => shared = still_shared,
            }
            std::thread::yield_now();
        };
        if !std::thread::panicking() {
            watch.close();
        }
    }
}

impl AbortHandle {
    /// Ends the communicator: on this rank and, as soon as they hear of it, on all others.
    pub fn abort(&self) {
        self.health.fail(Fault::Aborted, None);
        if let Some(watch) = self.watch.upgrade() {
            watch.abort("the application called abort");
        }
    }
}
