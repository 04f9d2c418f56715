//! What happens while a kernel waits.

use super::health::{Fault, Health, Outstanding};
use super::told::Told;
use crate::net::stream::LinkError;
use crate::plan::CallRecord;
use crate::proxy::Links;
use corosensei::Yielder;
use oxccl_device::conn::SendConn;
use oxccl_device::gpu::cpu::Waiter;
use oxccl_device::gpu::{Awaited, Stop, Wait};
use oxccl_shared::abi::{Func, SlotHeader};
use std::cell::{Cell, RefCell};
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
pub(super) const NAP: Duration = Duration::from_micros(100);
/// How long a wait lasts before the other ranks are told what we are in, so that they can tell a mismatch.
pub const ANNOUNCE_AFTER: Duration = Duration::from_millis(500);
/// How long a rank that met another operation waits to hear which.
pub(super) const REPLY_TIME: Duration = Duration::from_millis(500);
/// How long we look for what a rank may have sent before it left.
const LEFT_GRACE: Duration = Duration::from_millis(500);

/// How a rank speaks to the others outside of operations; used rarely and off the hot path.
pub trait Tell: Send {
    /// Tells all others.
    fn tell(&self, what: Told);
    /// We give up, and the others should not wait for us.
    fn gave_up(&self, why: &Outstanding);
}

/// The other ranks hear of a fault, unless they know better.
pub(super) fn announce(tell: &dyn Tell, outstanding: &Outstanding) {
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
    tell: Box<dyn Tell>,
    timeout: Duration,
    spins: u32,
    visits_before_yield: u32,
    /// The operation under way.
    during: Cell<Option<CallRecord>>,
    /// When the present wait was first found to be slow.
    since: Cell<Option<Instant>>,
    announced: Cell<bool>,
    /// For whom the others believe that we wait.
    told: Cell<Option<u32>>,
    /// The fiber we run in, if any. Valid while that fiber runs, which is whenever a kernel of ours can wait.
    fiber: Cell<*const Yielder<(), ()>>,
}

// SAFETY: `fiber` is null outside `Engine::run`, and the context is used by the thread that runs the engine only.
unsafe impl Send for WaitContext {}

impl WaitContext {
    /// For a communicator with these links on a host where ranks do or do not share processors.
    pub fn new(
        health: Arc<Health>,
        links: Links,
        tell: Box<dyn Tell>,
        timeout: Duration,
        crowded: bool,
    ) -> WaitContext {
        let spins = match (links.is_empty(), crowded) {
            (false, _) => 1,
            (true, true) => SPINS_CROWDED,
            (true, false) => SPINS_ALONE,
        };
        WaitContext {
            health,
            links: RefCell::new(links),
            tell,
            timeout,
            spins,
            visits_before_yield: if crowded { 1 } else { VISITS_BEFORE_YIELD },
            during: Cell::new(None),
            since: Cell::new(None),
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
    pub(super) fn enter_fiber(&self, yielder: *const Yielder<(), ()>) {
        self.fiber.set(yielder);
    }

    /// Waits spin again.
    pub(super) fn leave_fiber(&self) {
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

    /// The collective that we are in, if we are in one.
    fn collective(&self) -> Option<CallRecord> {
        self.during.get().filter(|record| !matches!(record.call.func, Func::Send | Func::Recv))
    }

    /// Whether the present wait has lasted so long.
    fn has_lasted(&self, time: Duration) -> bool {
        self.since.get().is_some_and(|since| since.elapsed() > time)
    }

    /// The slow questions, asked every so many visits.
    #[cold]
    fn check_clock(&self, on: Wait) -> Result<(), Stop> {
        let Some(since) = self.since.get() else {
            self.since.set(Some(Instant::now()));
            return Ok(());
        };
        let waited = since.elapsed();
        if waited > self.timeout {
            self.fail(Fault::Timeout { rank: self.health.waits().guilty(on.peer.0), waited });
            return Err(Stop);
        }
        if waited > LEFT_GRACE {
            // Our neighbour may have left because the one it waited for had, and is not to blame.
            let rank = self.health.waits().guilty(on.peer.0);
            if self.health.has_left(rank) {
                self.fail(Fault::PeerLeft { rank });
                return Err(Stop);
            }
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
        }
        let worked = self.links.borrow_mut().do_work(on.peer);
        let moved = match worked {
            Ok(moved) => moved,
            // The monitor says better than a closed socket whether that rank died, left or aborted; it gets its time.
            Err(LinkError::PeerClosed { .. }) if !self.has_lasted(LEFT_GRACE * 2) => 0,
            Err(error) => {
                self.fail(Fault::Link { error });
                return Err(Stop);
            }
        };
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
        // The peer answers with its own call, which makes the better message.
        if let Some(record) = self.collective() {
            // They parted here or earlier: the peer compares from the oldest on.
            self.health.remembered(record.seq).for_each(|record| self.tell.tell(Told::Call(record)));
            let asked = Instant::now();
            while !self.health.is_stopped() && asked.elapsed() < REPLY_TIME {
                std::thread::sleep(NAP);
            }
        }
        self.fail(Fault::Mismatch { rank: on.peer.0, theirs: None });
        Stop
    }
}

/// How often a spinning wait reads the clock.
const CLOCK_EVERY_VISITS: u32 = 64;
