//! What threads other than a communicator's own may ask of it.

use super::fault::Outstanding;
use super::health::Health;
use super::recorder::Recorded;
use super::stall::Standing;
use crate::plan::CallRecord;
use std::time::Duration;

/// How far a communicator has come. The numbers are of different moments if another thread uses it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Calls made so far, those of groups included.
    pub begun: u64,
    /// Of those, how many are known to be done: on GPUs, that their streams have completed.
    pub done: u64,
    /// The latest collective.
    pub latest: Option<CallRecord>,
}

/// How a thread has slept.
#[derive(Clone, Copy, Debug)]
pub struct Slept {
    /// What it wanted.
    pub asked: Duration,
    /// What it got.
    pub really: Duration,
}

/// A thread of a process that runs is not woken so much too late.
const LATE_MAX: Duration = Duration::from_millis(40);

impl Slept {
    /// Whether the process did not run: it was stopped, or has no processor.
    pub fn was_held_up(self) -> bool {
        self.really > self.asked + LATE_MAX
    }
}

/// Asks a communicator from any thread, whatever its own is doing. Keeps no memory, stream or connection of the communicator alive.
pub trait Probe: Send + Sync {
    /// Whether the communicator can go on.
    ///
    /// # Errors
    /// Its fault, which this may be the first to find.
    fn check(&self) -> Result<(), Outstanding>;

    /// Whether a fault is recorded. Unlike [`Self::check`] it looks for none and waits for nobody.
    fn has_failed(&self) -> bool;

    /// How far it has come.
    fn progress(&self) -> Progress;

    /// What this rank does, for the other ranks.
    fn standing(&self) -> Standing;

    /// Of one that is asked from time to time: ends what waits for a rank that does nothing more, of what it does by this standing. Returns
    /// when to ask again, if that is soon.
    fn end_hopeless(&self, _standing: &Standing) -> Option<Duration> {
        None
    }

    /// Adds what is known of the time at which these calls ran, which stand in their order, where they ran later than they were made.
    fn add_times(&self, _calls: &mut [Recorded]) {}

    /// Looks at what its operation waits for at this moment. Called every few milliseconds once an operation has lasted for long; `slept` says
    /// how long the caller slept since the look before. Returns whether another operation is under way than at the look before.
    fn sample(&self, _slept: Slept) -> bool {
        false
    }

    /// What stood still goes on: what counts how the operation under way divides its time begins anew.
    fn count_anew(&self);

    /// Whether nobody says when a call is slow, so that it has to be asked from time to time.
    fn is_polled(&self) -> bool {
        false
    }
}

/// Calls that are done when they return.
impl Probe for Health {
    fn check(&self) -> Result<(), Outstanding> {
        self.fault().map_or(Ok(()), Err)
    }

    fn has_failed(&self) -> bool {
        self.is_stopped()
    }

    fn progress(&self) -> Progress {
        let done = self.returned();
        Progress { begun: self.begun(), done, latest: self.latest() }
    }

    fn standing(&self) -> Standing {
        Health::standing(self)
    }

    fn count_anew(&self) {
        Health::count_anew(self);
    }
}
