//! A communicator as other threads see it: its state, its error, its progress, and abort.

use super::error::{ArgumentError, Error, OperationError};
use super::stalls::Stalls;
use crate::bootstrap::{Cancel, Watch};
use crate::launch::{Fault, Health, Outstanding, Probe, Progress, Stall};
use crate::os::Origin;
use crate::status::Ticket;
use oxccl_shared::abi::Rank;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Instant, SystemTime};

/// What other threads may ask of a communicator, and abort.
///
/// Any number of threads may have clones and use them at any time: while the communicator is being built, while another thread is in
/// one of its operations, and after it has ended. A handle keeps nothing of the communicator alive but its state. In a forked child it says
/// that the communicator failed ([`ArgumentError::Forked`]), and stops nothing.
#[derive(Clone)]
pub struct CommHandle(Arc<Shared>);

/// Where a communicator is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CommState {
    /// Its ranks are meeting and connecting.
    InProgress,
    /// Operations can run.
    Ready,
    /// It was not built, or has stopped for an error: see [`CommHandle::async_error`].
    Failed,
    /// This rank has left.
    Ended,
}

struct Shared {
    /// A forked child has a copy, in which the locks may be held for ever.
    origin: Origin,
    /// The rank and the number of ranks when it began to join: later ones need the lock.
    place_at_first: (Rank, u32),
    cancel: Cancel,
    stage: Mutex<Stage>,
    /// When it began to join.
    since: Instant,
    /// The same by the clock on the wall: asked once, since counters that began at another time would be others.
    began: SystemTime,
    /// This rank in the communicator from which this one was split, or that from which that was.
    world: Rank,
    /// While the process answers for it.
    ticket: Mutex<Option<Ticket>>,
}

enum Stage {
    /// This rank among others; of a split, until the new one is known, among the parent's.
    Joining {
        rank: Rank,
        nranks: u32,
        is_aborted: bool,
    },
    /// It was not built.
    Failed {
        rank: Rank,
        nranks: u32,
        error: Error,
    },
    Joined(Arc<Joined>),
    /// What it was at last.
    Ended {
        rank: Rank,
        nranks: u32,
        error: Option<Error>,
        progress: Progress,
    },
}

/// A communicator that can run operations.
struct Joined {
    rank: Rank,
    nranks: u32,
    health: Arc<Health>,
    stalls: Arc<Stalls>,
    watch: Weak<Watch>,
    probe: Arc<dyn Probe>,
}

impl Joined {
    fn check(&self) -> Result<(), Error> {
        self.probe.check().map_err(|outstanding| self.error(outstanding))
    }

    fn error(&self, outstanding: Outstanding) -> Error {
        let place = self.stalls.place_in_error(&outstanding.fault);
        OperationError { rank: self.rank, nranks: self.nranks, outstanding, place }.into()
    }
}

impl CommHandle {
    /// Of a rank that begins to join.
    pub(super) fn joining(rank: Rank, nranks: u32) -> CommHandle {
        CommHandle::joining_as((rank, nranks), rank)
    }

    /// Of a rank that begins to join another communicator with ranks of this one.
    pub(super) fn joining_from(&self) -> CommHandle {
        CommHandle::joining_as(self.place(), self.0.world)
    }

    fn joining_as((rank, nranks): (Rank, u32), world: Rank) -> CommHandle {
        let stage = Mutex::new(Stage::Joining { rank, nranks, is_aborted: false });
        let (cancel, ticket) = (Cancel::default(), Mutex::default());
        let (since, began) = (Instant::now(), SystemTime::now());
        let (origin, place_at_first) = (Origin::here(), (rank, nranks));
        CommHandle(Arc::new(Shared { origin, place_at_first, cancel, stage, since, began, world, ticket }))
    }

    /// This rank; while a split is in progress, that of the parent.
    pub fn rank(&self) -> u32 {
        self.place().0.0
    }

    /// The number of ranks; while a split is in progress, of the parent.
    pub fn size(&self) -> u32 {
        self.place().1
    }

    /// Where the communicator is in its life. May be the first to find that it has failed.
    pub fn state(&self) -> CommState {
        if !self.0.origin.is_here() {
            return CommState::Failed;
        }
        match &*self.stage() {
            Stage::Joining { is_aborted: false, .. } => return CommState::InProgress,
            Stage::Joining { .. } | Stage::Failed { .. } => return CommState::Failed,
            Stage::Ended { .. } => return CommState::Ended,
            Stage::Joined(_) => {}
        }
        match self.async_error() {
            Some(_) => CommState::Failed,
            None => CommState::Ready,
        }
    }

    /// The communicator's error, if it was not built or has stopped: the one that its operations return, available without one.
    pub fn async_error(&self) -> Option<Error> {
        if let Some(error) = self.forked() {
            return Some(error);
        }
        // The lock is not held while the machine is asked: that may take a while, and others abort meanwhile.
        let joined = match &*self.stage() {
            Stage::Joining { rank, nranks, is_aborted } => {
                return is_aborted.then(|| aborted(*rank, *nranks));
            }
            Stage::Failed { error, .. } => return Some(error.clone()),
            Stage::Ended { error, .. } => return error.clone(),
            Stage::Joined(joined) => joined.clone(),
        };
        joined.check().err()
    }

    /// What stopped it, as its operations say it.
    pub(super) fn operation_error(&self, outstanding: Outstanding) -> Error {
        let joined = match &*self.stage() {
            Stage::Joined(joined) => joined.clone(),
            Stage::Joining { rank, nranks, .. }
            | Stage::Failed { rank, nranks, .. }
            | Stage::Ended { rank, nranks, .. } => return operation_error((*rank, *nranks), outstanding),
        };
        joined.error(outstanding)
    }

    /// How far the communicator has come.
    pub fn progress(&self) -> Progress {
        if !self.0.origin.is_here() {
            return Progress::default();
        }
        let joined = match &*self.stage() {
            Stage::Joining { .. } | Stage::Failed { .. } => return Progress::default(),
            Stage::Ended { progress, .. } => return *progress,
            Stage::Joined(joined) => joined.clone(),
        };
        joined.probe.progress()
    }

    /// The operation without progress that the ranks know of, and the rank at fault: what one of them has written to the log
    /// ([`Config::stall_warn`](super::Config::stall_warn)). `None` once it moves again, and always where the warning is off.
    pub fn stall(&self) -> Option<Stall> {
        if !self.0.origin.is_here() {
            return None;
        }
        match &*self.stage() {
            Stage::Joined(joined) => joined.stalls.stall(),
            _ => None,
        }
    }

    /// Aborts the communicator: its waits on this rank end with [`Fault::Aborted`], also those of a rank that is still joining, and
    /// kernels that wait stop; the other ranks are told. Nothing happens to a communicator that has failed or ended.
    pub fn abort(&self) {
        if !self.0.origin.is_here() {
            return;
        }
        let joined = {
            let mut stage = self.stage();
            match &mut *stage {
                Stage::Joining { is_aborted, .. } => {
                    *is_aborted = true;
                    None
                }
                Stage::Joined(joined) => Some(joined.clone()),
                Stage::Failed { .. } | Stage::Ended { .. } => return,
            }
        };
        match joined {
            None => self.0.cancel.cancel(),
            Some(joined) => {
                // Another thread may see the fault and drop the communicator. It leaves only once nobody holds this, so that the
                // other ranks hear of the abort first.
                let watch = joined.watch.upgrade();
                joined.health.fail(Fault::Aborted, None);
                if let Some(watch) = watch {
                    watch.abort("the application called abort");
                }
            }
        }
    }

    /// Tags this rank's calls from now on with a number of the program's own, for example that of a step or a layer: reports of stalls, `oxccl
    /// status` and flight records show it beside the operation. 0 is no tag. Ranks may have different ones. Nothing happens to a communicator
    /// that is not ready.
    pub fn tag(&self, tag: u64) {
        if let Some((health, ..)) = self.inside() {
            health.recorder().tag(tag);
        }
    }

    /// Stops this rank's operations and refuses later ones, as [`Self::abort`] does, and tells no other rank: those that call it too may
    /// still [shrink](super::Comm::start_shrink) and split the communicator. Nothing happens to one that is not ready.
    pub fn revoke(&self) {
        if !self.0.origin.is_here() {
            return;
        }
        let joined = match &*self.stage() {
            Stage::Joined(joined) => joined.clone(),
            _ => return,
        };
        joined.health.fail(Fault::Revoked, None);
    }

    /// Whether [`Self::revoke`] stopped it, and nothing else before.
    pub fn is_revoked(&self) -> bool {
        match &*self.stage() {
            Stage::Joined(joined) => {
                joined.health.fault().is_some_and(|outstanding| outstanding.fault == Fault::Revoked)
            }
            _ => false,
        }
    }

    /// The error of a process that was forked by the one that made it.
    fn forked(&self) -> Option<Error> {
        let Shared { origin, place_at_first: (rank, _), .. } = &*self.0;
        (!origin.is_here()).then(|| ArgumentError::forked(*rank, origin).into())
    }

    /// Ends the waits of joining.
    pub(super) fn cancel(&self) -> &Cancel {
        &self.0.cancel
    }

    /// Whether the communicator was aborted before it could run operations.
    pub(super) fn is_aborted_early(&self) -> bool {
        matches!(&*self.stage(), Stage::Joining { is_aborted: true, .. })
    }

    /// The communicator can run operations.
    ///
    /// # Errors
    /// It was aborted meanwhile.
    pub(super) fn joined(
        &self,
        (rank, nranks): (Rank, u32),
        (health, stalls): (&Arc<Health>, &Arc<Stalls>),
        watch: &Arc<Watch>,
        probe: Arc<dyn Probe>,
    ) -> Result<(), Error> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Joining { is_aborted: true, .. }) {
            return Err(aborted(rank, nranks));
        }
        self.0.cancel.over();
        let (health, stalls, watch) = (health.clone(), stalls.clone(), Arc::downgrade(watch));
        *stage = Stage::Joined(Arc::new(Joined { rank, nranks, health, stalls, watch, probe }));
        Ok(())
    }

    /// The communicator is not built. Gives the error that says why: of an abort, that it was one.
    pub(super) fn failed(&self, error: Error) -> Error {
        let mut stage = self.stage();
        let Stage::Joining { rank, nranks, is_aborted } = *stage else { return error };
        let error = if is_aborted { aborted(rank, nranks) } else { error };
        *stage = Stage::Failed { rank, nranks, error: error.clone() };
        drop(stage);
        self.unlist();
        error
    }

    /// This rank leaves, or is in no communicator after a split.
    pub(super) fn ended(&self) {
        self.unlist();
        let joined = match &mut *self.stage() {
            Stage::Joined(joined) => joined.clone(),
            Stage::Failed { .. } | Stage::Ended { .. } => return,
            stage @ Stage::Joining { .. } => {
                let Stage::Joining { rank, nranks, .. } = *stage else { return };
                *stage = Stage::Ended { rank, nranks, error: None, progress: Progress::default() };
                return;
            }
        };
        let (rank, nranks, error) = (joined.rank, joined.nranks, joined.check().err());
        if error.is_none() {
            joined.stalls.leave();
        }
        *self.stage() = Stage::Ended { rank, nranks, error, progress: joined.probe.progress() };
    }

    /// When it began to join.
    pub(super) fn began(&self) -> SystemTime {
        self.0.began
    }

    pub(super) fn since(&self) -> Instant {
        self.0.since
    }

    /// This rank in the communicator from which this one was split.
    pub(super) fn world(&self) -> Rank {
        self.0.world
    }

    /// What there is to ask, without waiting for the machine, of one that can run operations.
    pub(super) fn inside(&self) -> Option<(Arc<Health>, Arc<Stalls>, Weak<Watch>)> {
        match &*self.stage() {
            Stage::Joined(joined) => {
                Some((joined.health.clone(), joined.stalls.clone(), joined.watch.clone()))
            }
            _ => None,
        }
    }

    /// State and error, without asking the machine.
    pub(super) fn known_state(&self) -> (CommState, Option<Error>) {
        match &*self.stage() {
            Stage::Joining { is_aborted: false, .. } => (CommState::InProgress, None),
            Stage::Joining { rank, nranks, .. } => (CommState::Failed, Some(aborted(*rank, *nranks))),
            Stage::Failed { error, .. } => (CommState::Failed, Some(error.clone())),
            Stage::Ended { error, .. } => (CommState::Ended, error.clone()),
            Stage::Joined(joined) => match joined.health.fault() {
                Some(fault) => {
                    let error = joined.error(fault);
                    (CommState::Failed, Some(error))
                }
                None => (CommState::Ready, None),
            },
        }
    }

    /// The process answers for it until it ends. Returns whether it does already.
    pub(super) fn ticket(&self) -> MutexGuard<'_, Option<Ticket>> {
        self.0.ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process answers for it no longer.
    fn unlist(&self) {
        let ticket = self.ticket().take();
        drop(ticket);
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> (Rank, u32) {
        if !self.0.origin.is_here() {
            return self.0.place_at_first;
        }
        match &*self.stage() {
            Stage::Joining { rank, nranks, .. }
            | Stage::Failed { rank, nranks, .. }
            | Stage::Ended { rank, nranks, .. } => (*rank, *nranks),
            Stage::Joined(joined) => (joined.rank, joined.nranks),
        }
    }
}

impl fmt::Debug for CommHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, nranks) = self.place();
        f.debug_struct("CommHandle").field("rank", &rank.0).field("nranks", &nranks).finish_non_exhaustive()
    }
}

pub(super) fn operation_error((rank, nranks): (Rank, u32), outstanding: Outstanding) -> Error {
    OperationError { rank, nranks, outstanding, place: None }.into()
}

/// The error of a rank that its own process aborted.
pub(super) fn aborted(rank: Rank, nranks: u32) -> Error {
    operation_error((rank, nranks), Outstanding { during: None, fault: Fault::Aborted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::BootstrapError;

    #[test]
    fn an_abort_while_joining_is_the_error_whatever_else_failed() {
        let handle = CommHandle::joining(Rank(1), 4);
        assert_eq!((handle.state(), handle.async_error()), (CommState::InProgress, None));
        handle.clone().abort();
        assert!(handle.cancel().is_called() && handle.is_aborted_early());
        assert_eq!((handle.state(), handle.async_error()), (CommState::Failed, Some(aborted(Rank(1), 4))));
        assert_eq!(handle.failed(BootstrapError::Aborted.into()), aborted(Rank(1), 4));
        assert!(aborted(Rank(1), 4).to_string().contains("aborted"));
    }

    #[test]
    fn why_it_was_not_built_stays_to_be_asked() {
        let handle = CommHandle::joining(Rank(0), 2);
        let error: Error = BootstrapError::PeerLost { rank: Rank(1) }.into();
        assert_eq!(handle.failed(error.clone()), error);
        handle.abort();
        assert_eq!((handle.state(), handle.async_error()), (CommState::Failed, Some(error)));
    }

    #[test]
    fn a_communicator_is_asked_and_aborted_across_threads() {
        fn shared<T: Send + Sync + Clone + 'static>() {}
        fn moved<T: Send + 'static>() {}
        shared::<CommHandle>();
        moved::<crate::Communicator>();
        moved::<crate::DeviceCommunicator>();
    }
}
