//! Whether this process is a fork of the one that made a thing.

use oxccl_shared::sync::{Sys, Word};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The number of this process among its ancestors, from 1; 0 in a child of a fork until it makes a thing of its own. The kernel clears it,
/// whatever function forks. Writers hold [`LAST`], but for [`clear`].
static NUMBER: OnceLock<&'static Word<u64, Sys>> = OnceLock::new();

/// The newest number of this process and its ancestors. Locked for a moment when a process makes its first thing.
static LAST: Mutex<u64> = Mutex::new(0);

/// The process that made a thing. To compare it with this process costs a load, and no system call.
pub struct Origin {
    number: &'static Word<u64, Sys>,
    at: u64,
    process: u32,
}

impl Origin {
    /// This process.
    pub fn here() -> Origin {
        let number = *NUMBER.get_or_init(|| wiped_on_fork().unwrap_or_else(cleared_on_fork));
        if number.load_relaxed() == 0 {
            let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
            if number.load_relaxed() == 0 {
                *last += 1;
                number.store_relaxed(*last);
            }
        }
        Origin { number, at: number.load_relaxed(), process: std::process::id() }
    }

    /// Whether this is still that process.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.number.load_relaxed() == self.at
    }

    /// Its number at the operating system.
    pub fn process(&self) -> u32 {
        self.process
    }
}

/// A word that the kernel clears in children, since Linux 4.14.
fn wiped_on_fork() -> Option<&'static Word<u64, Sys>> {
    let len = rustix::param::page_size();
    // SAFETY: a new mapping, anywhere.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let page = page.ok()?;
    // SAFETY: the mapping above, which nobody else knows.
    if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(page, len) };
        return None;
    }
    // SAFETY: a page of zeros, which is aligned for a word, is a word of value zero, and stays as long as the process.
    Some(unsafe { &*page.cast::<Word<u64, Sys>>() })
}

/// A word that the C library's `fork` clears in children.
fn cleared_on_fork() -> &'static Word<u64, Sys> {
    // SAFETY: the handler may run at any fork, and stays in memory as long as the library.
    if unsafe { libc::pthread_atfork(None, None, Some(clear)) } != 0 {
        tracing::warn!(
            "no memory to watch for forks: a forked child that uses a communicator of its parent's is not refused"
        );
    }
    Box::leak(Box::new(Word::new(0)))
}

/// Only what a child of many threads may do: a store.
extern "C" fn clear() {
    if let Some(number) = NUMBER.get() {
        number.store_relaxed(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child that no function of the C library forked says: its exit status.
    fn in_raw_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: no flags but the signal: a copy of this process, which only asks and exits.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let status = body();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the place is valid.
        assert_eq!(i64::from(unsafe { libc::waitpid(child as i32, &raw mut status, 0) }), child);
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_child_is_another_process_however_it_was_forked() {
        let parents = Origin::here();
        let seen = in_raw_child(|| {
            let before = parents.is_here();
            let own = Origin::here();
            i32::from(!before && own.is_here() && !parents.is_here() && parents.process() != own.process())
        });
        assert_eq!(seen, 1);
        assert!(parents.is_here() && Origin::here().is_here());
    }
}
