//! A thread that runs a proxy.

use super::engine::Progress;
use super::error::ProxyFailure;
use super::idle::{Idle, Idler};
use super::orders::ProxyOrders;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How to run a proxy.
#[derive(Clone, Debug)]
pub struct ProxyThreadConfig {
    /// The thread's name, at most 15 bytes of which the system shows.
    pub name: String,
    /// What it does when there is nothing to do.
    pub idle: Idle,
    /// The processors near the NIC that it may run on; empty: any.
    pub cpus: Vec<usize>,
}

/// For whom a proxy works. Asked and told on the proxy's thread.
pub trait ProxyOwner: Send + 'static {
    /// Whether nothing is to go on: the thread ends as soon as it looks again, which is at once while anything is under way.
    fn is_stopped(&self) -> bool;
    /// A connection has failed; told once. Meanwhile nothing moves.
    fn failed(&self, failure: &ProxyFailure);
}

/// Nobody: the giver of orders looks for itself.
impl ProxyOwner for () {
    fn is_stopped(&self) -> bool {
        false
    }
    fn failed(&self, _: &ProxyFailure) {}
}

/// A proxy on a thread of its own. Dropped, it aborts the proxy and waits for the thread.
pub struct ProxyThread {
    orders: ProxyOrders,
    thread: Option<JoinHandle<Progress>>,
    /// Whose thread it is: a forked child has only its memory.
    process: u32,
}

/// Idle looks between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 1024;

impl ProxyThread {
    /// Starts it.
    ///
    /// # Errors
    /// The system gives no thread.
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

    /// To give orders through.
    pub fn orders(&mut self) -> &mut ProxyOrders {
        &mut self.orders
    }

    /// Whether everything ordered is done.
    pub fn is_done(&self) -> bool {
        self.orders.is_all_done()
    }

    /// Lets it finish what was ordered, and ends it. A proxy that has failed ends at once.
    pub fn stop(mut self) {
        self.orders.stop();
        self.join();
    }

    fn join(&mut self) {
        if self.process != std::process::id() {
            return std::mem::forget(self.thread.take());
        }
        // A panic of the thread has been told by the panic hook; the connections are gone with it.
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

/// Runs until told to end.
fn run(mut progress: Progress, idle: Idle, owner: &impl ProxyOwner) -> Progress {
    let (start, mut idler, mut looks) = (Instant::now(), Idler::new(idle), 0u32);
    let (mut slept, mut is_told) = (Duration::ZERO, false);
    while !progress.has_ended() && !owner.is_stopped() {
        let moved = progress.do_work();
        if !is_told && let Some(failure) = progress.failure() {
            owner.failed(failure);
            is_told = true;
        }
        if moved > 0 {
            idler.reset();
            continue;
        }
        let rest = idler.next(progress.is_quiet());
        looks += 1;
        // Sleeps make looks rarer: the clock is looked at all the same.
        if looks.is_multiple_of(LOOKS_PER_CLOCK) || matches!(rest, super::idle::Rest::Sleep(_)) {
            let now = start.elapsed();
            if now.saturating_sub(slept) > Duration::from_millis(1) {
                progress.check(now);
                slept = now;
            }
        }
        rest.take();
    }
    progress
}

/// Keeps this thread on these processors, as far as the system lets it: elsewhere it is slower, not wrong.
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
