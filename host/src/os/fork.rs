//! Whether this process is a fork of the one that made a thing.

use oxccl_shared::sync::{Sys, Word};
use std::sync::OnceLock;

/// How many forks lie between the first process that asked and this one. Writer: the only thread of a child, before `fork` returns there.
static FORKS: OnceLock<Word<u64, Sys>> = OnceLock::new();

/// The process that made it. To ask costs a load and a compare, and no system call.
pub(crate) struct Origin {
    forks: &'static Word<u64, Sys>,
    at: u64,
}

impl Origin {
    /// This process.
    pub fn here() -> Origin {
        let forks = FORKS.get_or_init(|| {
            // SAFETY: the handler may run at any fork, and stays in memory as long as the library.
            if unsafe { libc::pthread_atfork(None, None, Some(count)) } != 0 {
                tracing::warn!("no memory to watch for forks: a forked child that uses a communicator of its parent's is not refused");
            }
            Word::new(0)
        });
        Origin { forks, at: forks.load_relaxed() }
    }

    /// Whether this is still that process.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.forks.load_relaxed() == self.at
    }
}

/// Only what a child of many threads may do: a load and a store.
extern "C" fn count() {
    if let Some(forks) = FORKS.get() {
        forks.store_relaxed(forks.load_relaxed() + 1);
    }
}
