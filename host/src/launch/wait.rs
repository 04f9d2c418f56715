//! What happens while a kernel waits.

mod networks;

use super::coll_links::CollLinks;
use super::health::{Fault, Health, Outstanding};
use super::net_links::NetLinks;
use super::told::Told;
use crate::net::stream::LinkError;
use crate::plan::CallRecord;
use crate::proxy::Links;
use corosensei::Yielder;
use oxccl_device::conn::SendConn;
use oxccl_device::gpu::cpu::Waiter;
use oxccl_device::gpu::{Awaited, Stop, Wait};
use oxccl_shared::abi::{Func, Rank, SlotHeader};
use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks between two visits of [`WaitContext::wait`] when every rank of the host has a processor.
const SPINS_ALONE: u32 = 256;
/// The same when ranks share processors: the peer may need ours to do what we wait for.
const SPINS_CROWDED: u32 = 32;
/// Visits without yielding the processor, when every rank has one: about 25 us. A peer that has not answered by then may well be
/// waiting for the processor that we spin on, whatever else runs on this host.
const VISITS_BEFORE_YIELD: u32 = 4;
/// How long a wait lasts before it sleeps between looks.
const NAP_AFTER: Duration = Duration::from_millis(20);
pub(crate) const NAP: Duration = Duration::from_micros(100);
/// How long a wait lasts before the other ranks are told what we are in, so that they can tell a mismatch.
pub const ANNOUNCE_AFTER: Duration = Duration::from_millis(500);
/// Between two looks at the clock at most this part of the timeout counts: a rank whose process was stopped (by a batch system that
/// suspends jobs, by a debugger) knows nothing of that time, and its peers were stopped with it, as likely as not.
const GAPS_MIN: u32 = 4;
/// How long a rank that met another operation waits to hear which.
pub(crate) const REPLY_TIME: Duration = Duration::from_millis(500);
/// How long we look for what a rank may have sent before it left, from when we hear that it did.
pub(crate) const LEFT_GRACE: Duration = Duration::from_millis(500);

/// How a rank speaks to the others outside of operations; used rarely and off the hot path.
pub trait Tell: Send {
    /// Tells all others.
    fn tell(&self, what: Told);
    /// We give up, and the others should not wait for us.
    fn gave_up(&self, why: &Outstanding);
}

/// The other ranks hear of a fault, unless they know better.
pub(crate) fn announce(tell: &dyn Tell, outstanding: &Outstanding) {
    match outstanding.fault {
        Fault::PeerDied { .. } | Fault::PeerAborted { .. } => return,
        // Whoever waits for us should name that rank, not us, and hears this before it hears that we left.
        Fault::PeerLeft { rank } => return tell.tell(Told::WaitsFor(Some(rank))),
        // First the guilty one's name, so that the others do not take us for it.
        Fault::Timeout { rank, waited } => tell.tell(Told::TimedOut { rank, waited }),
        _ => {}
    }
    tell.gave_up(outstanding);
}

/// One communicator's waiting: progress of its links, its health, its clock.
pub struct WaitContext {
    health: Arc<Health>,
    links: RefCell<Links>,
    net_links: RefCell<Option<NetLinks>>,
    coll_links: RefCell<Option<CollLinks>>,
    /// When the first failure of a network was seen.
    net_broken_since: Cell<Option<Instant>>,
    tell: Box<dyn Tell>,
    timeout: Duration,
    spins: u32,
    visits_before_yield: u32,
    /// The operation under way.
    during: Cell<Option<CallRecord>>,
    /// When the present wait was first found to be slow.
    since: Cell<Option<Instant>>,
    /// The last look at the clock in the present wait.
    looked_at: Cell<Option<Instant>>,
    /// Whether the present wait has been found to be over the timeout.
    overdue: Cell<bool>,
    /// Who was found to have left during the present wait, and when.
    left: Cell<Option<(u32, Instant)>>,
    /// When the connection was found closed during the present wait.
    closed: Cell<Option<Instant>>,
    announced: Cell<bool>,
    /// For whom the others believe that we wait.
    told: Cell<Option<u32>>,
    /// The fiber we run in, if any. Valid while that fiber runs, which is whenever a kernel of ours can wait.
    fiber: Cell<*const Yielder<(), ()>>,
}

// SAFETY: `fiber` is null outside `Engine::run`, and the context is used by the thread that runs the engine only.
unsafe impl Send for WaitContext {}

impl WaitContext {
    /// For a communicator with these links, those over a network and that to one that reduces, on a host where ranks do or do not
    /// share processors.
    pub fn new(
        health: Arc<Health>,
        links: Links,
        (net_links, coll_links): (Option<NetLinks>, Option<CollLinks>),
        tell: Box<dyn Tell>,
        timeout: Duration,
        crowded: bool,
    ) -> WaitContext {
        let has_links = !links.is_empty() || net_links.is_some() || coll_links.is_some();
        let spins = match (!has_links, crowded) {
            (false, _) => 1,
            (true, true) => SPINS_CROWDED,
            (true, false) => SPINS_ALONE,
        };
        WaitContext {
            health,
            links: RefCell::new(links),
            net_links: RefCell::new(net_links),
            coll_links: RefCell::new(coll_links),
            net_broken_since: Cell::new(None),
            tell,
            timeout,
            spins,
            visits_before_yield: if crowded { 1 } else { VISITS_BEFORE_YIELD },
            during: Cell::new(None),
            since: Cell::new(None),
            looked_at: Cell::new(None),
            overdue: Cell::new(false),
            left: Cell::new(None),
            closed: Cell::new(None),
            announced: Cell::new(false),
            told: Cell::new(None),
            fiber: Cell::new(std::ptr::null()),
        }
    }

    /// The communicator's health.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// The links of the communicator's proxies.
    pub fn links(&self) -> &RefCell<Links> {
        &self.links
    }

    /// The connections over a network, if there are any.
    pub(crate) fn net_links(&self) -> RefMut<'_, Option<NetLinks>> {
        self.net_links.borrow_mut()
    }

    /// The connection to a network that reduces, if this rank is a head.
    pub(crate) fn coll_links(&self) -> RefMut<'_, Option<CollLinks>> {
        self.coll_links.borrow_mut()
    }

    /// Names the operation that starts now.
    #[inline]
    pub fn begin(&self, record: &CallRecord) {
        self.during.set(Some(*record));
        self.announced.set(false);
    }

    /// The call is over: if the others were told that we wait, we do not any more.
    #[inline]
    pub fn end(&self) {
        if self.told.take().is_some() {
            self.tell.tell(Told::WaitsFor(None));
        }
    }

    /// From now on waits hand the thread to whoever resumes this fiber. The yielder must outlive the stay.
    pub(crate) fn enter_fiber(&self, yielder: *const Yielder<(), ()>) {
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
        announce(&*self.tell, &outstanding);
        outstanding
    }

    /// Waits until a network connection's slots have all been handed to the network.
    pub fn flush(&self, conn: &SendConn) -> Result<(), Stop> {
        let mut looks = 0u32;
        while !conn.is_drained() {
            looks = looks.saturating_add(1);
            self.wait(Wait { peer: conn.peer(), what: Awaited::Credit }, looks)?;
        }
        Ok(())
    }

    /// Yields the thread or the processor, by how long this wait has lasted.
    fn pause(&self, visits: u32) {
        let fiber = self.fiber.get();
        if !fiber.is_null() {
            // SAFETY: set by `enter_fiber` until the fiber's work is done, and we are in it.
            unsafe { &*fiber }.suspend(());
        } else if self.has_lasted(NAP_AFTER) {
            std::thread::sleep(NAP);
        } else if visits >= self.visits_before_yield {
            std::thread::yield_now();
        } else {
            oxccl_shared::sync::cpu_relax();
        }
    }

    /// A rank does something else than we do.
    #[cold]
    fn refuse_rank(&self, peer: Rank) -> Stop {
        // The peer answers with its own call, which makes the better message.
        if let Some(record) = self.collective() {
            // They parted here or earlier: the peer compares from the oldest on.
            self.health.remembered(record.seq).for_each(|record| self.tell.tell(Told::Call(record)));
            let asked = Instant::now();
            while !self.health.is_stopped() && asked.elapsed() < REPLY_TIME {
                std::thread::sleep(NAP);
            }
        }
        self.fail(Fault::Mismatch { rank: peer.0, theirs: None });
        Stop
    }

    /// The collective that we are in, if we are in one.
    fn collective(&self) -> Option<CallRecord> {
        self.during.get().filter(|record| !matches!(record.call.func, Func::Send | Func::Recv))
    }

    /// Whether the present wait has lasted so long.
    fn has_lasted(&self, time: Duration) -> bool {
        self.since.get().is_some_and(|since| since.elapsed() > time)
    }

    /// When this wait first found that the rank had left: what it sent before is looked for from then on.
    fn left_since(&self, rank: u32) -> Instant {
        let known = self.left.get().filter(|(left, _)| *left == rank);
        let (_, since) = known.unwrap_or_else(|| (rank, Instant::now()));
        self.left.set(Some((rank, since)));
        since
    }

    /// Whether the connection was found closed some time ago: the monitor says better than a socket whether that rank died, left
    /// or aborted, and gets this time.
    fn is_long_closed(&self) -> bool {
        let since = self.closed.get().unwrap_or_else(Instant::now);
        self.closed.set(Some(since));
        since.elapsed() > LEFT_GRACE * 2
    }

    /// How long the present wait has lasted, as far as this rank has seen it; nothing when it is looked at for the first time.
    fn waited(&self) -> Option<Duration> {
        let now = Instant::now();
        let gap = self.looked_at.replace(Some(now)).map_or(Duration::ZERO, |looked_at| now - looked_at);
        let Some(since) = self.since.get() else {
            self.since.set(Some(now));
            return None;
        };
        let since = since + gap.saturating_sub(self.timeout / GAPS_MIN);
        self.since.set(Some(since));
        Some(now.saturating_duration_since(since))
    }

    /// The slow questions, asked every so many visits.
    #[cold]
    fn check_clock(&self, on: Wait) -> Result<(), Stop> {
        let Some(waited) = self.waited() else { return Ok(()) };
        // Whoever slept past the timeout, with the data there all the while, is to look once more.
        if waited > self.timeout && self.overdue.replace(true) {
            self.fail(Fault::Timeout { rank: self.health.waits().guilty(on.peer.0), waited });
            return Err(Stop);
        }
        // Our neighbour may have left because the one it waited for had, and is not to blame.
        let rank = self.health.waits().guilty(on.peer.0);
        if self.health.has_left(rank) && self.left_since(rank).elapsed() > LEFT_GRACE {
            self.fail(Fault::PeerLeft { rank });
            return Err(Stop);
        }
        if waited <= ANNOUNCE_AFTER.min(self.timeout / 2) {
            return Ok(());
        }
        if self.told.replace(Some(on.peer.0)) != Some(on.peer.0) {
            self.tell.tell(Told::WaitsFor(Some(on.peer.0)));
        }
        if !self.announced.replace(true) {
            self.collective().iter().for_each(|record| self.tell.tell(Told::Call(*record)));
        }
        Ok(())
    }
}

impl Waiter for WaitContext {
    fn spins(&self) -> u32 {
        if self.fiber.get().is_null() { self.spins } else { 1 }
    }

    fn wait(&self, on: Wait, looks: u32) -> Result<(), Stop> {
        let visits = looks / self.spins().max(1);
        if visits <= 1 {
            self.since.set(None);
            self.overdue.set(false);
            self.left.set(None);
            self.closed.set(None);
        }
        let worked = self.links.borrow_mut().do_work(on.peer);
        let mut moved = match worked {
            Ok(moved) => moved,
            Err(LinkError::PeerClosed { .. }) if !self.is_long_closed() => 0,
            Err(error) => {
                self.fail(Fault::Link { error });
                return Err(Stop);
            }
        };
        moved += self.drive_network(on)?;
        moved += self.drive_reduction(on)?;
        if self.health.is_stopped() {
            return Err(Stop);
        }
        if moved == 0 {
            self.pause(visits);
            if visits.is_multiple_of(CLOCK_EVERY_VISITS) || self.since.get().is_some() {
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

/// How often a spinning wait reads the clock.
const CLOCK_EVERY_VISITS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::Rank;

    struct Nobody;

    impl Tell for Nobody {
        fn tell(&self, _: Told) {}
        fn gave_up(&self, _: &Outstanding) {}
    }

    const ON: Wait = Wait { peer: Rank(1), what: Awaited::Data };

    fn context(timeout: Duration) -> WaitContext {
        WaitContext::new(
            Arc::new(Health::new(0, 2)),
            Links::default(),
            (None, None),
            Box::new(Nobody),
            timeout,
            true,
        )
    }

    /// Visits the wait as a kernel does that finds nothing, until it is told to stop or the time is over.
    fn visit_for(context: &WaitContext, time: Duration, looks: &mut u32) -> Result<(), Stop> {
        let began = Instant::now();
        while began.elapsed() < time {
            *looks += context.spins();
            context.wait(ON, *looks)?;
        }
        Ok(())
    }

    /// A rank that is waited for does its part at last and closes: its part came before its goodbye, and is still looked for.
    #[test]
    fn what_was_sent_before_a_goodbye_is_looked_for_however_long_the_wait() {
        let context = context(Duration::from_secs(60));
        let mut looks = 0;
        assert!(visit_for(&context, LEFT_GRACE * 2, &mut looks).is_ok());
        context.health().note_left(1);
        assert!(visit_for(&context, LEFT_GRACE / 2, &mut looks).is_ok());
        assert!(visit_for(&context, LEFT_GRACE * 2, &mut looks).is_err());
        assert_eq!(context.health().fault().map(|o| o.fault), Some(Fault::PeerLeft { rank: 1 }));
    }

    /// A process that is stopped for longer than the timeout has not looked meanwhile. When a whole job is stopped and goes on, its
    /// ranks do not take each other for dead.
    #[test]
    fn a_wait_that_slept_past_its_timeout_has_most_of_it_before_it() {
        let (timeout, short) = (Duration::from_secs(2), Duration::from_millis(10));
        let context = context(timeout);
        let mut looks = 0;
        assert!(visit_for(&context, short, &mut looks).is_ok());
        std::thread::sleep(timeout + short);
        assert!(visit_for(&context, short, &mut looks).is_ok());
        assert!(visit_for(&context, timeout * 50, &mut looks).is_err());
        assert!(matches!(
            context.health().fault().map(|o| o.fault),
            Some(Fault::Timeout { rank: 1, waited }) if waited > timeout
        ));
    }
}
