//! Layer: tests.
//! Takes: a process of ours.
//! Gives: [`Slowed`]: the process runs for some milliseconds of each tenth of a second.
//! Never: leaves it stopped.

use crate::process::Process;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

const RUNS: Duration = Duration::from_millis(3);
const PERIOD: Duration = Duration::from_millis(100);

/// A process that is slow until this is dropped. It has to live so long.
pub struct Slowed {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    /// Slows it from now on.
    ///
    /// # Panics
    /// If there is no thread for it.
    pub fn start(process: &Process) -> Slowed {
        let pid = Pid::from_raw(process.pid() as i32).expect("a process");
        let is_over = Arc::new(AtomicBool::new(false));
        let (until, begun) = (is_over.clone(), Arc::new(Barrier::new(2)));
        let stopped = begun.clone();
        let turn = move || {
            // One that has ended needs neither.
            let send = |signal| kill_process(pid, signal).unwrap_or(());
            send(Signal::STOP);
            stopped.wait();
            while !until.load(Ordering::Relaxed) {
                std::thread::sleep(PERIOD - RUNS);
                send(Signal::CONT);
                std::thread::sleep(RUNS);
                send(Signal::STOP);
            }
            send(Signal::CONT);
        };
        let thread = std::thread::Builder::new().name("slows".to_owned()).spawn(turn).expect("a thread");
        begun.wait();
        Slowed { is_over, thread: Some(thread) }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // It cannot fail.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}
