//! A thread that runs a proxy.

use super::engine::Progress;
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

/// A proxy on a thread of its own. Dropped, it aborts the proxy and waits for the thread.
pub struct ProxyThread {
    orders: ProxyOrders,
    thread: Option<JoinHandle<Progress>>,
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
    ) -> io::Result<ProxyThread> {
        let (idle, cpus, name) = (config.idle, config.cpus.clone(), config.name.clone());
        let builder = std::thread::Builder::new().name(name);
        let thread = builder.spawn(move || {
            stay_on(&cpus);
            run(progress, idle)
        })?;
        orders.wakes(thread.thread().clone());
        Ok(ProxyThread { orders, thread: Some(thread) })
    }

    /// To give orders through.
    pub fn orders(&mut self) -> &mut ProxyOrders {
        &mut self.orders
    }

    /// Lets it finish what was ordered, and ends it. A proxy that has failed ends at once.
    pub fn stop(mut self) {
        self.orders.stop();
        self.join();
    }

    fn join(&mut self) {
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
fn run(mut progress: Progress, idle: Idle) -> Progress {
    let (start, mut idler, mut looks) = (Instant::now(), Idler::new(idle), 0u32);
    let mut slept = Duration::ZERO;
    while !progress.has_ended() {
        if progress.do_work() > 0 {
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
