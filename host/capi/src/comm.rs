//! A communicator behind its handle: the engine, which one thread at a time uses, and beside it what any thread may ask and do.

use crate::config::Settings;
use crate::operator::Operators;
use crate::registry::{Handle, Registry};
use crate::result::{Failure, Outcome};
use crate::types::Code;
use oxccl::{CommHandle, DeviceCommunicator, UniqueId};
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// Every communicator that has a handle.
pub static COMMS: Registry<Comm> = Registry::new("communicator", 1);

pub struct Comm {
    pub handle: Handle,
    /// The GPU that was current when it was asked for.
    pub device: u32,
    pub settings: Settings,
    /// Equal for the ranks of one communicator.
    pub clique: u64,
    pub operators: Mutex<Operators>,
    seat: OnceLock<Seat>,
    /// Locked after `status`, where both are.
    engine: Mutex<Option<DeviceCommunicator>>,
    status: Mutex<Status>,
    changed: Condvar,
    line: Arc<Line>,
    /// Whether its ranks can signal each other by now.
    pub has_signals: AtomicBool,
}

/// A rank's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    pub rank: u32,
    pub nranks: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// A thread connects it.
    Joining,
    Ready,
    /// Ready, and refuses operations until it is resumed.
    Suspended,
    /// It could not be connected.
    Failed,
    /// A thread waits for its operations and leaves.
    Ending,
    Ended,
    /// Aborted or destroyed: threads that still have it get an error.
    Freed,
}

struct Status {
    phase: Phase,
    /// Threads that work for a call of this communicator that has returned already.
    working: u32,
    /// Splits so far: ranks of a child recognise each other by it.
    children: u64,
    /// Once there is something to abort.
    inner: Option<CommHandle>,
    failure: Option<Failure>,
    /// The id by which it is to grow, until it is used.
    offered: Option<UniqueId>,
    /// The engine of a suspended communicator.
    parked: Option<DeviceCommunicator>,
    /// Tickets given out.
    tickets: u64,
}

/// The steps of a communicator that need all of its ranks: they run on threads of their own, in the order in which they were asked for.
type Line = (Mutex<u64>, Condvar);

/// A place in that order, until it is dropped.
pub struct Ticket {
    /// From 1.
    number: u64,
    line: Arc<Line>,
}

impl Ticket {
    /// Waits until those before are done.
    pub fn wait(&self) {
        let (done, changed) = &*self.line;
        let mut done = lock(done);
        while *done + 1 < self.number {
            done = changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // One that was never used has its turn too.
        self.wait();
        *lock(&self.line.0) = self.number;
        self.line.1.notify_all();
    }
}

/// A thread that works for a communicator, or is to, until this is dropped.
pub struct Working(Arc<Comm>);

impl Drop for Working {
    fn drop(&mut self) {
        lock(&self.0.status).working -= 1;
    }
}

/// A communicator that is out of use because it is to end. One that is dropped without [`Self::start`], with its group for example, is in
/// use again: nobody would end it, and who waits for its end would wait for ever.
pub struct Ending(Option<Arc<Comm>>);

impl Ending {
    /// The caller ends it, by [`Comm::end`].
    pub fn start(mut self) -> Arc<Comm> {
        self.0.take().expect("taken once, here")
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(comm) = self.0.take() else { return };
        let mut status = lock(&comm.status);
        if status.phase == Phase::Ending {
            status.phase = if status.parked.is_some() { Phase::Suspended } else { Phase::Ready };
        }
        drop(status);
        comm.changed.notify_all();
    }
}

/// The engine, for as long as nobody else is to use it.
pub struct Engine<'a>(MutexGuard<'a, Option<DeviceCommunicator>>);

impl Deref for Engine<'_> {
    type Target = DeviceCommunicator;

    fn deref(&self) -> &DeviceCommunicator {
        self.0.as_ref().expect("a guard is only made of an engine that is there")
    }
}

impl Status {
    fn why_failed(&self) -> Failure {
        let unknown = || Failure::new(Code::InternalError, "comm failed, and does not know why");
        self.failure.clone().unwrap_or_else(unknown)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Comm {
    pub fn new(handle: Handle, device: u32, settings: Settings, clique: u64) -> Comm {
        let status = Status {
            phase: Phase::Joining,
            working: 0,
            children: 0,
            inner: None,
            failure: None,
            offered: None,
            parked: None,
            tickets: 0,
        };
        Comm {
            handle,
            device,
            settings,
            clique,
            operators: Mutex::default(),
            seat: OnceLock::new(),
            engine: Mutex::new(None),
            status: Mutex::new(status),
            changed: Condvar::new(),
            line: Arc::default(),
            has_signals: AtomicBool::new(false),
        }
    }

    /// The next place among the steps that need all ranks.
    pub fn ticket(&self) -> Ticket {
        let mut status = lock(&self.status);
        status.tickets += 1;
        Ticket { number: status.tickets, line: self.line.clone() }
    }

    pub fn is_blocking(&self) -> bool {
        self.settings.is_blocking()
    }

    /// Its rank and the number of ranks, once it is ready and ever after.
    pub fn seat(&self) -> Outcome<Seat> {
        self.seat.get().copied().ok_or_else(|| self.why_not_ready())
    }

    /// The engine, for a call.
    ///
    /// # Errors
    /// Why there is none.
    pub fn engine(&self) -> Outcome<Engine<'_>> {
        let engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // A background thread may keep it until other ranks have come.
                if !self.is_blocking() && lock(&self.status).working > 0 {
                    return Err(self.why_not_ready());
                }
                lock(&self.engine)
            }
        };
        if engine.is_none() {
            drop(engine);
            return Err(self.why_not_ready());
        }
        Ok(Engine(engine))
    }

    #[cold]
    fn why_not_ready(&self) -> Failure {
        let status = lock(&self.status);
        match status.phase {
            Phase::Joining | Phase::Ready => Failure::invalid_argument(
                "comm is not ready: an earlier call on it is in progress; call ncclCommGetAsyncError until it \
                 gives another result than ncclInProgress",
            ),
            Phase::Failed => status.why_failed(),
            Phase::Ending | Phase::Ended => Failure::invalid_usage(
                "comm was finalized: only ncclCommDestroy and ncclCommAbort may follow",
            ),
            Phase::Suspended => Failure::invalid_usage("comm is suspended: ncclCommResume comes first"),
            Phase::Freed => Failure::invalid_argument("comm was aborted or destroyed meanwhile"),
        }
    }

    /// What a background thread made. Returns it if nobody wants it any more.
    pub fn joined(&self, made: Outcome<Option<DeviceCommunicator>>) {
        let mut status = lock(&self.status);
        let unwanted = match made {
            made if status.phase != Phase::Joining => made.ok().flatten(),
            Ok(Some(engine)) => {
                let _ = self.seat.set(Seat { rank: engine.rank(), nranks: engine.size() });
                status.inner = Some(engine.handle());
                *lock(&self.engine) = Some(engine);
                status.phase = Phase::Ready;
                None
            }
            Ok(None) => {
                status.phase = Phase::Ended;
                None
            }
            Err(failure) => {
                status.failure = Some(failure);
                status.phase = Phase::Failed;
                None
            }
        };
        drop(status);
        self.changed.notify_all();
        if let Some(engine) = unwanted {
            engine.abort();
        }
    }

    /// It can be aborted by this, from now on.
    pub fn started(&self, inner: CommHandle) {
        let mut status = lock(&self.status);
        if status.phase == Phase::Joining {
            status.inner = Some(inner);
        } else {
            drop(status);
            inner.abort();
        }
    }

    /// Waits until it is connected, or not to be.
    ///
    /// # Errors
    /// Why it is not.
    pub fn wait_joined(&self) -> Outcome {
        let mut status = lock(&self.status);
        while status.phase == Phase::Joining {
            status = self.changed.wait(status).unwrap_or_else(PoisonError::into_inner);
        }
        match status.phase {
            Phase::Failed => Err(status.why_failed()),
            Phase::Freed => Err(Failure::invalid_usage("comm was aborted while it was being connected")),
            _ => Ok(()),
        }
    }

    /// Counts a thread that works for this communicator, or is to.
    pub fn begin_work(self: &Arc<Comm>) -> Working {
        lock(&self.status).working += 1;
        Working(self.clone())
    }

    /// The number of a new child, equal on all ranks.
    pub fn next_child(&self) -> u64 {
        let mut status = lock(&self.status);
        status.children += 1;
        status.children
    }

    /// The failure that operations of this communicator return, without waiting for anybody.
    pub fn async_failure(&self) -> Option<Failure> {
        let status = lock(&self.status);
        match status.phase {
            Phase::Failed => return status.failure.clone(),
            Phase::Ready | Phase::Suspended => {}
            _ => return None,
        }
        let inner = status.inner.clone();
        drop(status);
        // Who revoked it wanted that.
        inner.filter(|inner| !inner.is_revoked())?.async_error().map(Failure::from)
    }

    /// What `ncclCommGetAsyncError` gives.
    pub fn state(&self) -> Code {
        {
            let status = lock(&self.status);
            let is_working = status.working > 0 && !self.is_blocking();
            match status.phase {
                Phase::Joining | Phase::Ending => return Code::InProgress,
                Phase::Ready if is_working => return Code::InProgress,
                _ => {}
            }
        }
        self.async_failure().map_or(Code::Success, |failure| failure.code)
    }

    /// Takes it out of use, to end it.
    ///
    /// # Errors
    /// A communicator that is not ready.
    pub fn begin_end(self: &Arc<Comm>) -> Outcome<Ending> {
        let mut status = lock(&self.status);
        match status.phase {
            Phase::Ready | Phase::Suspended if status.working == 0 || self.is_blocking() => {
                status.phase = Phase::Ending;
                Ok(Ending(Some(self.clone())))
            }
            _ => {
                drop(status);
                Err(self.why_not_ready())
            }
        }
    }

    /// Waits for its operations and leaves; on a thread that may wait. In order, it waits for the other ranks too, and says how that
    /// went.
    pub fn end(&self, in_order: bool) {
        let parked = lock(&self.status).parked.take();
        let engine = lock(&self.engine).take().or(parked);
        let ended = match engine {
            Some(engine) if in_order => engine.finalize(),
            engine => {
                drop(engine);
                Ok(())
            }
        };
        let mut status = lock(&self.status);
        if status.phase == Phase::Ending {
            status.phase = if ended.is_ok() { Phase::Ended } else { Phase::Failed };
            status.failure = ended.err().map(Failure::from);
        }
        drop(status);
        self.changed.notify_all();
    }

    /// Waits until [`Self::end`] is done.
    ///
    /// # Errors
    /// How it went.
    pub fn wait_ended(&self) -> Outcome {
        let mut status = lock(&self.status);
        while status.phase == Phase::Ending {
            status = self.changed.wait(status).unwrap_or_else(PoisonError::into_inner);
        }
        status.failure.clone().map_or(Ok(()), Err)
    }

    pub fn phase(&self) -> Phase {
        lock(&self.status).phase
    }

    /// Gives it up, whatever it is doing, and stops its kernels. Returns what it was.
    pub fn free(&self) -> Phase {
        let mut status = lock(&self.status);
        let was = std::mem::replace(&mut status.phase, Phase::Freed);
        let inner = status.inner.take();
        drop(status);
        self.changed.notify_all();
        if let Some(inner) = inner {
            inner.abort();
        }
        was
    }

    /// Drops the engine on this thread, once nobody else uses it.
    pub fn drop_engine(&self) {
        let parked = lock(&self.status).parked.take();
        let engine = lock(&self.engine).take();
        drop((engine, parked));
    }

    /// Stops its operations; ranks that do so can still make others of it.
    ///
    /// # Errors
    /// It is not ready.
    pub fn revoke(&self) -> Outcome {
        drop(self.engine()?);
        let inner = lock(&self.status).inner.clone();
        inner.iter().for_each(CommHandle::revoke);
        Ok(())
    }

    pub fn is_revoked(&self) -> bool {
        lock(&self.status).inner.as_ref().is_some_and(CommHandle::is_revoked)
    }

    /// Keeps the id by which it is to grow.
    ///
    /// # Errors
    /// There is one that was not used yet.
    pub fn offer_id(&self, make: impl FnOnce() -> Outcome<UniqueId>) -> Outcome {
        if lock(&self.status).offered.is_some() {
            return Err(Failure::invalid_usage(
                "an earlier id of comm was not used yet: ncclCommGrow uses it, once",
            ));
        }
        let id = make()?;
        lock(&self.status).offered = Some(id);
        Ok(())
    }

    pub fn offered_id(&self) -> Option<UniqueId> {
        lock(&self.status).offered
    }

    /// Uses the id up.
    ///
    /// # Errors
    /// It is not the one that was offered.
    pub fn use_id(&self, id: &UniqueId) -> Outcome {
        let mut status = lock(&self.status);
        if status.offered.as_ref() != Some(id) {
            return Err(Failure::invalid_argument(
                "uniqueId is not of ncclCommGetUniqueId of this comm, or was used before",
            ));
        }
        status.offered = None;
        Ok(())
    }

    /// Takes it out of use until [`Self::resume`]; its operations are done.
    ///
    /// # Errors
    /// It is not ready.
    pub fn suspend(&self) -> Outcome {
        let mut status = lock(&self.status);
        let mut engine = lock(&self.engine);
        if status.phase != Phase::Ready || engine.is_none() {
            drop((engine, status));
            return Err(self.why_not_ready());
        }
        status.parked = engine.take();
        status.phase = Phase::Suspended;
        Ok(())
    }

    /// # Errors
    /// It is not suspended.
    pub fn resume(&self) -> Outcome {
        let mut status = lock(&self.status);
        if status.phase != Phase::Suspended {
            return Err(Failure::invalid_usage("comm is not suspended: ncclCommSuspend comes first"));
        }
        *lock(&self.engine) = status.parked.take();
        status.phase = Phase::Ready;
        Ok(())
    }

    /// Bytes of the GPU's memory that it holds.
    ///
    /// # Errors
    /// It is not ready, nor suspended.
    pub fn memory_bytes(&self) -> Outcome<u64> {
        if let Some(parked) = &lock(&self.status).parked {
            return Ok(parked.memory().total_bytes() as u64);
        }
        Ok(self.engine()?.memory().total_bytes() as u64)
    }
}

/// Runs `work` on a thread of its own, which connects `comm`.
///
/// # Errors
/// The operating system starts no thread.
pub fn connect_in_background(
    comm: &Arc<Comm>,
    work: impl FnOnce(&Comm) -> Outcome<Option<DeviceCommunicator>> + Send + 'static,
) -> Outcome {
    let inside = comm.clone();
    in_background("oxccl-init", move || {
        let work = std::panic::AssertUnwindSafe(|| work(&inside));
        let made = std::panic::catch_unwind(work).unwrap_or_else(|_| {
            Err(Failure::new(Code::InternalError, "a defect of the library: connecting panicked"))
        });
        inside.joined(made);
    })
    .inspect_err(|failure| comm.joined(Err(failure.clone())))
}

/// Runs `work` on a thread of its own.
///
/// # Errors
/// The operating system starts none.
pub fn in_background(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|error| {
        Failure::new(Code::SystemError, format!("no thread could be started: {error} (see ulimit -u)"))
    })
}
