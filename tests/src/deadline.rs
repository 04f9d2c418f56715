//! A bound on every test: what hangs ends with the name of what hung.

use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the test is doing now.
static DOING: Mutex<String> = Mutex::new(String::new());

/// Says what the test does now, for the message if it hangs.
pub fn doing(what: impl FnOnce() -> String) {
    *DOING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = what();
}

/// Ends the process if it is not dropped in time.
pub struct Deadline {
    done: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl Deadline {
    /// Starts the clock of the test called `name`.
    pub fn start(name: &'static str, limit: Duration) -> Deadline {
        let (done, finished) = channel::<()>();
        let watcher = std::thread::spawn(move || {
            if finished.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let doing = DOING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                eprintln!("{name}: not done after {limit:?}; last doing: {doing}");
                // A panic would end this thread only; the ones that hang cannot be ended but with the process.
                std::process::abort();
            }
        });
        Deadline { done: Some(done), watcher: Some(watcher) }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(watcher) = self.watcher.take() {
            // It only returns or aborts.
            let _ = watcher.join();
        }
    }
}
