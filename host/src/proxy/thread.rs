//! A proxy's thread.

use super::engine::Progress;
use super::error::ProxyFailure;
use super::idle::{Idle, Idler, Rest};
use super::orders::ProxyOrders;
use oxccl_shared::abi::Rank;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Options of a proxy's thread.
#[derive(Clone, Debug)]
pub struct ProxyThreadConfig {
    /// The thread's name, of which the system shows 15 bytes.
    pub name: String,
    /// Its back-off.
    pub idle: Idle,
    /// The CPUs near the NIC to which it is pinned; empty: any.
    pub cpus: Vec<usize>,
}

/// The owner of a proxy, called on the proxy's thread.
pub trait ProxyOwner: Send + 'static {
    /// Whether to stop: the thread then ends at its next poll, which is at once while an operation is in flight.
    fn is_stopped(&self) -> bool;
    /// Reports for whom this rank waits at a network that reduces once it has waited for long, and when it does not any more.
    fn waits_for(&self, _head: Option<Rank>) {}
    /// Reports a failed connection, once. The thread makes no progress meanwhile.
    fn failed(&self, failure: &ProxyFailure);
}

/// No owner: the issuer of orders polls for failures.
impl ProxyOwner for () {
    fn is_stopped(&self) -> bool {
        false
    }
    fn failed(&self, _: &ProxyFailure) {}
}

/// A proxy on its own thread. Dropping it aborts the proxy and joins the thread.
pub struct ProxyThread {
    orders: ProxyOrders,
    thread: Option<JoinHandle<Progress>>,
    /// The process that started it: a forked child has only its memory.
    process: u32,
}

/// Turns between two clock reads.
const TURNS_PER_CLOCK: u32 = 1024;

impl ProxyThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn start(
        mut orders: ProxyOrders,
        progress: Progress,
        config: &ProxyThreadConfig,
        owner: impl ProxyOwner,
    ) -> io::Result<ProxyThread> {
        let (idle, cpus, name) = (config.idle, config.cpus.clone(), config.name.clone());
        let builder = std::thread::Builder::new().name(name);
        let thread = builder.spawn(move || {
            stay_on(&cpus);
            run(progress, idle, &owner)
        })?;
        orders.wakes(thread.thread().clone());
        Ok(ProxyThread { orders, thread: Some(thread), process: std::process::id() })
    }

    /// The issuing end of its orders.
    pub fn orders(&mut self) -> &mut ProxyOrders {
        &mut self.orders
    }

    /// Whether all orders are complete.
    pub fn is_done(&self) -> bool {
        self.orders.is_all_done()
    }

    /// Completes all orders, then ends the thread. A failed proxy ends at once.
    pub fn stop(mut self) {
        self.orders.stop();
        self.join();
    }

    fn join(&mut self) {
        if self.process != std::process::id() {
            return std::mem::forget(self.thread.take());
        }
        // The panic hook has reported a panic of the thread; the connections are gone with it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for ProxyThread {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.orders.abort();
            self.join();
        }
    }
}

/// Runs until stopped.
fn run(mut progress: Progress, idle: Idle, owner: &impl ProxyOwner) -> Progress {
    let (start, mut idler, mut clock) = (Instant::now(), Idler::new(idle), Clock::default());
    let (mut is_reported, mut waits_for) = (false, None);
    while !progress.has_ended() && !owner.is_stopped() {
        let moved = progress.do_work();
        if !is_reported && let Some(failure) = progress.failure() {
            owner.failed(failure);
            is_reported = true;
        }
        let rest = if moved > 0 {
            idler.reset();
            Rest::None
        } else {
            idler.next(progress.is_quiet())
        };
        if clock.is_due(rest)
            && let Some(now) = clock.read(start.elapsed())
        {
            progress.check(now);
            // What failed waits no more, and the others still look for whom it waited for.
            if !is_reported && progress.waits_long() != waits_for {
                waits_for = progress.waits_long();
                owner.waits_for(waits_for);
            }
        }
        rest.take();
    }
    progress
}

/// When to read the clock: at intervals, also under load. A connection times out however busy the others are.
#[derive(Default)]
struct Clock {
    turns: u32,
    last: Duration,
}

impl Clock {
    /// Whether to read the clock in this turn. Sleeps make turns rare, so it is read before each sleep.
    #[inline]
    fn is_due(&mut self, rest: Rest) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns.is_multiple_of(TURNS_PER_CLOCK) || matches!(rest, Rest::Sleep(_))
    }

    /// The time, unless it has hardly changed.
    fn read(&mut self, now: Duration) -> Option<Duration> {
        let is_new = now.saturating_sub(self.last) > Duration::from_millis(1);
        if is_new {
            self.last = now;
        }
        is_new.then_some(now)
    }
}

/// Pins this thread to CPUs, as far as the system permits: elsewhere it is slower, not wrong.
fn stay_on(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    if let Err(errno) = sched_setaffinity(None, &set) {
        tracing::warn!(?cpus, %errno, "the proxy's thread cannot be kept on the processors near the NIC");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy once read the clock only after a number of idle turns. One that counts turns must survive more of them
    /// than its counter has values: a few minutes' worth.
    #[test]
    fn a_busy_proxy_looks_at_the_clock_too_and_for_ever() {
        let mut clock = Clock { turns: u32::MAX - TURNS_PER_CLOCK / 2, last: Duration::ZERO };
        let due = (0..10 * TURNS_PER_CLOCK).filter(|_| clock.is_due(Rest::None)).count();
        assert_eq!(due, 10);
        assert!(clock.is_due(Rest::Sleep(None)));
        assert_eq!(clock.read(Duration::from_micros(1500)), Some(Duration::from_micros(1500)));
        assert_eq!(clock.read(Duration::from_micros(1600)), None);
    }
}
