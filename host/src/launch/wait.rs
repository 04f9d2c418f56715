//! What happens while a kernel waits.

mod clock;

use super::blame::Circle;
use super::drive::DriveFailure;
use super::drives::Drives;
use super::fault::{Fault, Outstanding};
use super::health::{Health, SlowWait};
use super::in_flight;
use super::notice::Notice;
use super::recorder::Recorded;
use crate::plan::{Call, CallRecord};
use clock::Clock;
use corosensei::Yielder;
use oxccl_device::conn::SendConn;
use oxccl_device::gpu::cpu::Waiter;
use oxccl_device::gpu::{Awaited, Stop, Wait};
use oxccl_shared::abi::{Rank, SlotHeader};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Polls between two visits of [`WaitContext::wait`] when every rank of the host has a processor.
const SPINS_ALONE: u32 = 256;
/// The same when ranks share processors: the peer may need ours to do what we wait for.
const SPINS_CROWDED: u32 = 8;
/// Visits without yielding the processor, when every rank has one: about 25 us. A peer that has not answered by then may well be
/// waiting for the processor that we spin on, whatever else runs on this host.
const VISITS_BEFORE_YIELD: u32 = 4;
/// How long a wait lasts before it sleeps between polls.
const BACK_OFF_AFTER: Duration = Duration::from_millis(20);
pub(crate) const BACK_OFF: Duration = Duration::from_micros(100);
/// How long a wait lasts before the other ranks learn which call we are in, so that they can name a mismatch.
pub const ANNOUNCE_AFTER: Duration = Duration::from_millis(500);
/// How long a rank that met another operation waits to hear which.
pub(crate) const REPLY_TIME: Duration = Duration::from_millis(500);
/// How long we look for what a rank may have sent before it left, from when we hear that it did.
pub(crate) const LEFT_GRACE: Duration = Duration::from_millis(500);
/// How long we look once more for what a rank has sent, from when we hear that it had finalized before.
pub(crate) const LAST_LOOKS: Duration = Duration::from_millis(50);

/// By which a fiber suspends: it says whether its present wait has lasted for long.
pub(crate) type FiberYielder = Yielder<(), bool>;

/// How a rank speaks to the others outside of operations; used rarely and off the hot path.
pub trait Notify: Send {
    /// Tells all others.
    fn notify(&self, what: Notice);
    /// We give up, and the others should not wait for us.
    fn gave_up(&self, why: &Outstanding);
    /// Returns when the others have been sent what they were told, or soon.
    fn flush(&self) {}
}

/// The other ranks hear of a fault, unless they know better. They hear it before this process can end because of it, and nobody takes this
/// rank for the one that ended first.
pub(crate) fn announce(notify: &dyn Notify, outstanding: &Outstanding) {
    tell(notify, outstanding);
    notify.flush();
}

fn tell(notify: &dyn Notify, outstanding: &Outstanding) {
    match outstanding.fault {
        Fault::PeerDied { .. } | Fault::PeerAborted { .. } | Fault::PeerTimeout { .. } => return,
        // They do so themselves.
        Fault::Revoked => return,
        // Whoever waits for us should name that rank, not us, and hears this before it hears that we left.
        Fault::PeerLeft { rank } => return notify.notify(Notice::WaitsFor(Some(rank))),
        // The guilty one hears for what, and the others do not take us for it.
        Fault::PeerFinalized { rank, collectives } => {
            notify.notify(Notice::Missed { rank, collectives, during: outstanding.during });
        }
        // First the guilty one's name, so that the others do not take us for it.
        Fault::Timeout { rank, limit } => notify.notify(Notice::TimedOut { rank, limit }),
        _ => {}
    }
    notify.gave_up(outstanding);
}

/// One communicator's waiting: progress of what it drives, its health, its clock.
pub struct WaitContext {
    health: Arc<Health>,
    drives: Drives,
    clock: Clock,
    /// How long a wait lasts before the others hear of it.
    announce_after: Duration,
    pace: Pace,
    notify: Box<dyn Notify>,
    /// The operation under way.
    during: Cell<Option<CallRecord>>,
    /// Whether the others know of it.
    announced: Cell<bool>,
    /// When one of its waits was first found to be slow.
    slow_since: Cell<Option<Instant>>,
    /// For whom the others believe that we wait.
    notified: Cell<Option<Rank>>,
    /// Whether the present wait has been announced.
    is_known: Cell<bool>,
    /// The fiber we run in, if any. Valid while that fiber runs, which is whenever a kernel of ours can wait.
    fiber: Cell<*const FiberYielder>,
    /// When the present wait was visited last and counted: ticks, or 0.
    visited: Cell<u64>,
}

// SAFETY: `fiber` is null outside `Engine::run`, and the context is used by the thread that runs the engine only.
unsafe impl Send for WaitContext {}

/// How impatient waits are.
struct Pace {
    /// Polls between two visits of [`WaitContext::wait`].
    spins: u32,
    visits_before_yield: u32,
}

impl Pace {
    /// On a host where ranks do or do not share processors, with or without something to drive.
    fn new(has_drives: bool, is_crowded: bool) -> Pace {
        let spins = match (has_drives, is_crowded) {
            (true, _) => 1,
            (false, true) => SPINS_CROWDED,
            (false, false) => SPINS_ALONE,
        };
        Pace { spins, visits_before_yield: if is_crowded { 1 } else { VISITS_BEFORE_YIELD } }
    }
}

impl WaitContext {
    /// For a communicator with these connections to drive, on a host where ranks do or do not share processors.
    pub fn new(
        health: Arc<Health>,
        drives: Drives,
        notify: Box<dyn Notify>,
        timeout: Duration,
        crowded: bool,
    ) -> WaitContext {
        let pace = Pace::new(!drives.is_empty(), crowded);
        WaitContext {
            health,
            drives,
            clock: Clock::new(timeout),
            announce_after: ANNOUNCE_AFTER.min(timeout / 2),
            pace,
            notify,
            during: Cell::new(None),
            announced: Cell::new(false),
            slow_since: Cell::new(None),
            notified: Cell::new(None),
            is_known: Cell::new(false),
            fiber: Cell::new(std::ptr::null()),
            visited: Cell::new(0),
        }
    }

    /// The same, which reports waits that last for `warn`: the others hear of a wait long before.
    pub fn warning_after(self, warn: Duration) -> WaitContext {
        WaitContext { announce_after: self.announce_after.min(warn / 4), ..self }
    }

    /// The communicator's health.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// What waits drive.
    #[inline]
    pub(crate) fn drives(&self) -> &Drives {
        &self.drives
    }

    /// Names the operation that starts now.
    #[inline]
    pub fn begin(&self, record: &CallRecord) {
        self.during.set(Some(*record));
        self.announced.set(false);
        self.slow_since.set(None);
    }

    /// Names a message that joins those under way.
    pub(crate) fn begin_message(&self, call: &Call) {
        let seq = self.during.get().map_or(0, |record| record.seq);
        let record = CallRecord { seq, call: *call };
        self.health.recorder().begin(&record);
        self.begin(&record);
    }

    /// The call is over: if the others believe that we wait, we do not any more.
    #[inline]
    pub fn end(&self) {
        if self.notified.take().is_some() {
            self.health.note_wait(None);
            self.notify.notify(Notice::WaitsFor(None));
        }
    }

    /// From now on waits hand the thread to whoever resumes this fiber. The yielder must outlive the stay.
    pub(crate) fn enter_fiber(&self, yielder: *const FiberYielder) {
        self.fiber.set(yielder);
    }

    /// Waits spin again.
    pub(crate) fn leave_fiber(&self) {
        self.fiber.set(std::ptr::null());
    }

    /// Records a fault of the operation under way.
    #[cold]
    pub fn fail(&self, fault: Fault) -> Outstanding {
        self.health.fail(fault, self.during.get())
    }

    /// The fault that stopped the operation under way. The others hear of it, unless they know better.
    #[cold]
    pub fn give_up(&self) -> Outstanding {
        let fault = self.health.fault().unwrap_or_else(|| self.fail(Fault::Aborted));
        let outstanding = Outstanding { during: fault.during.or(self.during.get()), ..fault };
        announce(&*self.notify, &outstanding);
        outstanding
    }

    /// Waits until a network connection's slots have all been handed to the network.
    pub fn flush(&self, conn: &SendConn) -> Result<(), Stop> {
        let mut polls = 0u32;
        while !conn.is_drained() {
            polls = polls.saturating_add(1);
            self.wait(Wait { peer: conn.peer(), what: Awaited::Credit }, polls)?;
        }
        Ok(())
    }

    /// Counts the time since the last visit of the same wait. Where a visit follows every poll, not all of them read the clock.
    #[inline]
    fn count_wait(&self, on: Wait, visits: u32) {
        if visits <= 1 {
            self.visited.set(0);
        } else if self.spins() > 1 || visits.is_multiple_of(COUNT_EVERY_POLLS) {
            let now = self.health.recorder().ticks();
            let before = self.visited.replace(now);
            if before != 0 {
                let ticks = now.saturating_sub(before).min(GAP_TICKS_MAX);
                self.health.count_wait(on.peer, ticks);
                if self.is_for_network(on) {
                    self.health.count_wait_for_network(ticks);
                }
            }
        }
    }

    /// Whether the rank that is waited for stands for a network that reduces.
    #[inline]
    fn is_for_network(&self, on: Wait) -> bool {
        !self.drives.is_empty() && self.collective().is_some() && self.drives.are_meant_by(on.peer)
    }

    /// Yields the thread or the processor, by how long this wait has lasted. What else is in flight on the thread goes on meanwhile.
    fn pause(&self, visits: u32) {
        let fiber = self.fiber.get();
        if !fiber.is_null() {
            let is_long = self.clock.has_lasted(BACK_OFF_AFTER);
            // SAFETY: set by `enter_fiber` until the fiber's work is done, and we are in it.
            return unsafe { &*fiber }.suspend(is_long);
        }
        let others_wait_long = in_flight::advance_all();
        if others_wait_long && self.clock.has_lasted(BACK_OFF_AFTER) {
            std::thread::sleep(BACK_OFF);
        } else if visits >= self.pace.visits_before_yield {
            std::thread::yield_now();
        } else {
            oxccl_shared::sync::cpu_relax();
        }
    }

    /// Drives what there is to drive. Returns how much went on.
    #[inline]
    fn drive(&self, on: Wait) -> Result<usize, Stop> {
        match self.drives.drive(on, LEFT_GRACE * 2) {
            (moved, None) => Ok(moved),
            (_, Some(failure)) => Err(self.end_by(&failure)),
        }
    }

    #[cold]
    fn end_by(&self, failure: &DriveFailure) -> Stop {
        if !self.health.is_stopped() {
            self.drives.log_post_mortem();
        }
        if failure.is_mismatch {
            return self.refuse_rank(failure.peer);
        }
        // A network only sees that the connection has ended.
        let has_left = failure.is_of_network && self.health.has_left(failure.peer);
        self.fail(match has_left {
            true => Fault::PeerLeft { rank: failure.peer },
            false => Fault::Link { error: failure.error },
        });
        Stop
    }

    /// A rank does something else than we do.
    #[cold]
    fn refuse_rank(&self, peer: Rank) -> Stop {
        // The peer answers with its own call, which makes the better message.
        if let Some(record) = self.during.get() {
            match record.call.func.is_message() {
                // Of a group the latest call is kept; it is a receiver that sees a message of another length.
                true => {
                    let recorder = self.health.recorder();
                    let last = recorder.next().checked_sub(1);
                    let found = last.and_then(|last| recorder.message_with(last, peer, false));
                    if let Some(Recorded { nth, record: half, .. }) = found {
                        self.notify.notify(Notice::Message { nth, half });
                    }
                }
                // They parted here or earlier: the peer compares from the oldest on.
                false => self
                    .health
                    .remembered(record.seq)
                    .for_each(|record| self.notify.notify(Notice::Call(record))),
            }
            let asked = Instant::now();
            while !self.health.is_stopped() && asked.elapsed() < REPLY_TIME {
                std::thread::sleep(BACK_OFF);
            }
        }
        self.fail(Fault::Mismatch { rank: peer, theirs: None });
        Stop
    }

    /// The collective that we are in, if we are in one.
    fn collective(&self) -> Option<CallRecord> {
        self.during.get().filter(|record| !record.call.func.is_message())
    }

    /// Why a wait has lasted too long. Nothing yet, if other ranks wait for each other: they know better for what.
    #[cold]
    fn overdue(&self, on: Wait, waited: Duration) -> Option<Fault> {
        let waits = self.health.waits();
        let circle = waits.circle(on.peer);
        if circle == Circle::Others && !self.clock.is_over(waited.saturating_sub(LEFT_GRACE)) {
            return None;
        }
        let limit = self.clock.timeout();
        let beyond = if circle == Circle::Ours { self.drives.beyond(on, limit) } else { None };
        let timeout = || Fault::Timeout { rank: waits.guilty(on.peer), limit };
        Some(beyond.map_or_else(timeout, |error| Fault::Link { error }))
    }

    /// The slow questions, asked every so many visits.
    #[cold]
    fn check_clock(&self, on: Wait) -> Result<(), Stop> {
        let Some(waited) = self.clock.waited() else {
            self.is_known.set(false);
            self.notice_long_operation();
            return Ok(());
        };
        if self.clock.is_over(waited)
            && let Some(fault) = self.overdue(on, waited)
        {
            self.fail(fault);
            return Err(Stop);
        }
        // Our neighbour may have left because the one it waited for had, and is not to blame.
        let rank = self.health.waits().guilty(on.peer);
        if self.health.has_left(rank) {
            if self.clock.left_since(rank).elapsed() > LEFT_GRACE {
                self.fail(Fault::PeerLeft { rank });
                return Err(Stop);
            }
        } else if let Some(collectives) = self.left_alone_by(on) {
            self.fail(Fault::PeerFinalized { rank: on.peer, collectives });
            return Err(Stop);
        }
        if waited <= self.announce_after {
            self.notice_long_operation();
            return Ok(());
        }
        let (during, is_for_network) = (self.during.get(), self.is_for_network(on));
        let wait = SlowWait { peer: on.peer, is_for_network, during, waited, looked_at: Instant::now() };
        let was_seen = self.health.note_wait(Some(wait));
        let is_new = !self.is_known.replace(true) || !was_seen;
        // The monitor sleeps between waits, also those for the same rank: each slow wait wakes it.
        if self.notified.replace(Some(on.peer)) != Some(on.peer) || is_new {
            self.notify.notify(Notice::WaitsFor(Some(on.peer)));
        }
        self.announce_call();
        Ok(())
    }

    /// The collectives of the rank that we wait for, if it has finalized and what we wait for never comes.
    fn left_alone_by(&self, on: Wait) -> Option<u64> {
        let finished = self.health.finalized().of(on.peer)?;
        let traffic = self.health.traffic().get(on.peer.index());
        let ours = traffic.filter(|_| !self.drives.stand_for(on.peer)).map(|traffic| traffic.read());
        let is_alone = finished.leaves_waiting(on.what, self.during.get(), ours);
        // What it sent before may have come since the kernel looked last.
        (is_alone && self.clock.left_since(on.peer).elapsed() > LAST_LOOKS)
            .then_some(finished.part.collectives)
    }

    /// An operation may last although each of its waits is short: then somebody may be slow.
    fn notice_long_operation(&self) {
        let now = Instant::now();
        let since = self.slow_since.get().unwrap_or(now);
        self.slow_since.set(Some(since));
        if now - since > self.announce_after {
            self.announce_call();
        }
    }

    /// Tells the others, once in an operation, which one it is. The monitor looks at this rank then.
    fn announce_call(&self) {
        if !self.announced.replace(true) {
            self.collective().iter().for_each(|record| self.notify.notify(Notice::Call(*record)));
        }
    }
}

impl Waiter for WaitContext {
    fn spins(&self) -> u32 {
        if self.fiber.get().is_null() { self.pace.spins } else { 1 }
    }

    fn wait(&self, on: Wait, polls: u32) -> Result<(), Stop> {
        let visits = polls / self.spins().max(1);
        if visits <= 1 {
            self.clock.restart();
        }
        self.count_wait(on, visits);
        let moved = if self.drives.is_empty() { 0 } else { self.drive(on)? };
        if self.health.is_stopped() {
            return Err(Stop);
        }
        if moved == 0 {
            self.pause(visits);
            if visits.is_multiple_of(CLOCK_EVERY_VISITS) || self.clock.is_running() {
                self.check_clock(on)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn refuse(&self, on: Wait, _expected: SlotHeader, _found: SlotHeader) -> Stop {
        self.refuse_rank(on.peer)
    }
}

/// How often a wait that is visited after every poll reads the clock to count its time.
const COUNT_EVERY_POLLS: u32 = 16;
/// Between two looks of a wait at most so many ticks count, 12 to 60 ms by the clock's speed: in a longer gap the thread did not run, and
/// did not wait for others all the while.
const GAP_TICKS_MAX: u64 = 60_000_000;
/// How often a spinning wait reads the clock.
const CLOCK_EVERY_VISITS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Finished, LastPart};
    use oxccl_shared::abi::Rank;
    use std::sync::Mutex;

    /// Counts notices of waits.
    #[derive(Clone, Default)]
    struct Others(Arc<Mutex<Vec<Option<Rank>>>>);

    impl Notify for Others {
        fn notify(&self, what: Notice) {
            if let Notice::WaitsFor(peer) = what {
                self.0.lock().unwrap().push(peer);
            }
        }

        fn gave_up(&self, _: &Outstanding) {}
    }

    const ON: Wait = Wait { peer: Rank(1), what: Awaited::Data };

    fn context(timeout: Duration) -> WaitContext {
        context_among(Others::default(), timeout)
    }

    fn context_among(others: Others, timeout: Duration) -> WaitContext {
        WaitContext::new(Arc::new(Health::new(Rank(0), 2)), Drives::none(), Box::new(others), timeout, true)
    }

    /// Visits the wait as a kernel does that finds nothing, until it is told to stop or the time is over.
    fn visit_for(context: &WaitContext, time: Duration, polls: &mut u32) -> Result<(), Stop> {
        let began = Instant::now();
        while began.elapsed() < time {
            *polls += context.spins();
            context.wait(ON, *polls)?;
        }
        Ok(())
    }

    /// A rank that is waited for does its part at last and closes: its part came before its goodbye, and is still looked for.
    #[test]
    fn what_was_sent_before_a_goodbye_is_looked_for_however_long_the_wait() {
        let context = context(Duration::from_secs(60));
        let mut polls = 0;
        assert!(visit_for(&context, LEFT_GRACE * 2, &mut polls).is_ok());
        context.health().note_left(Rank(1));
        assert!(visit_for(&context, LEFT_GRACE / 2, &mut polls).is_ok());
        assert!(visit_for(&context, LEFT_GRACE * 40, &mut polls).is_err());
        assert_eq!(context.health().fault().map(|o| o.fault), Some(Fault::PeerLeft { rank: Rank(1) }));
    }

    /// Whatever the timeout, which was all that ended it.
    #[test]
    fn a_wait_for_a_rank_that_has_finalized_ends_unless_its_data_is_on_its_way() {
        let part = LastPart { collectives: 7, sent: 1, received: 0, messages: None };
        for (sent, ends) in [(1, false), (0, true)] {
            let (context, mut polls) = (context(Duration::from_secs(60)), 0);
            let part = LastPart { sent, ..part };
            context.health().finalized().note(Rank(1), Finished { part, is_near: false });
            // Where it ends, it ends soon, but a machine may be busy.
            let time = if ends { LAST_LOOKS * 400 } else { LAST_LOOKS * 4 };
            assert_eq!(visit_for(&context, time, &mut polls).is_err(), ends);
            let found = context.health().fault().map(|outstanding| outstanding.fault);
            assert_eq!(found, ends.then_some(Fault::PeerFinalized { rank: Rank(1), collectives: 7 }));
        }
    }

    /// A rank that is stopped, continued and stopped again within one operation was reported once: the second wait was for the same
    /// rank as the first, and nothing woke the monitor.
    #[test]
    fn every_slow_wait_of_an_operation_wakes_the_monitor() {
        let others = Others::default();
        let context = context_among(others.clone(), Duration::from_secs(60)).warning_after(ANNOUNCE_AFTER);
        let long = ANNOUNCE_AFTER / 4 + ANNOUNCE_AFTER / 2;
        for times in 1..=3 {
            assert!(visit_for(&context, long, &mut 0).is_ok());
            assert_eq!(*others.0.lock().unwrap(), vec![Some(Rank(1)); times]);
        }
        context.end();
        assert_eq!(others.0.lock().unwrap().last(), Some(&None));
    }

    /// A process that was not scheduled for a while looks as if it did not wait; the monitor slept since, and is woken.
    #[test]
    fn a_wait_that_nobody_saw_for_a_while_wakes_the_monitor_again() {
        let others = Others::default();
        let context = context_among(others.clone(), Duration::from_secs(60)).warning_after(ANNOUNCE_AFTER);
        let mut polls = 0;
        assert!(visit_for(&context, ANNOUNCE_AFTER / 2, &mut polls).is_ok());
        std::thread::sleep(ANNOUNCE_AFTER * 2);
        assert_eq!(context.health().standing().waits_for, None);
        // Soon, but a machine may be busy.
        let began = Instant::now();
        while others.0.lock().unwrap().len() < 2 && began.elapsed() < ANNOUNCE_AFTER * 20 {
            assert!(visit_for(&context, ANNOUNCE_AFTER / 16, &mut polls).is_ok());
        }
        assert_eq!(*others.0.lock().unwrap(), [Some(Rank(1)); 2]);
    }

    /// A process that is stopped for longer than the timeout has not looked meanwhile. When a whole job is stopped and goes on, its
    /// ranks do not take each other for dead.
    #[test]
    fn a_wait_that_slept_past_its_timeout_has_most_of_it_before_it() {
        let (timeout, short) = (Duration::from_secs(2), Duration::from_millis(10));
        let context = context(timeout);
        let mut polls = 0;
        assert!(visit_for(&context, short, &mut polls).is_ok());
        std::thread::sleep(timeout + short);
        assert!(visit_for(&context, short, &mut polls).is_ok());
        let woke = Instant::now();
        assert!(visit_for(&context, timeout * 50, &mut polls).is_err());
        assert!(woke.elapsed() > timeout / 2);
        let fault = context.health().fault().map(|o| o.fault);
        assert_eq!(fault, Some(Fault::Timeout { rank: Rank(1), limit: timeout }));
    }
}
