//! SIGUSR2, if a communicator's settings want it: the flight records are to be written.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// What the handler writes to, and whose it is: a forked child shares it with its parent.
struct Bell {
    fd: OwnedFd,
    process: u32,
}

static BELL: OnceLock<Option<Bell>> = OnceLock::new();

/// Takes the signal, once per process, unless the program has a handler of its own.
pub(super) fn install() {
    BELL.get_or_init(|| match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(fd) if take_signal() => Some(Bell { fd, process: std::process::id() }),
        Ok(_) => {
            tracing::warn!("SIGUSR2 writes no flight records: the program has a handler for it");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "SIGUSR2 writes no flight records");
            None
        }
    });
}

fn bell() -> Option<&'static Bell> {
    BELL.get()?.as_ref().filter(|bell| bell.process == std::process::id())
}

/// What becomes readable by the signal.
pub(super) fn fd() -> Option<BorrowedFd<'static>> {
    bell().map(|bell| bell.fd.as_fd())
}

/// Whether the signal has come since the last call.
pub(super) fn take() -> bool {
    bell().is_some_and(|bell| rustix::io::read(&bell.fd, &mut [0u8; 8]).is_ok())
}

/// Only calls that a handler may make: an atomic load, getpid and write.
extern "C" fn ring(_: libc::c_int) {
    // SAFETY: the location is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    if let Some(bell) = bell() {
        let one = 1u64;
        // SAFETY: the descriptor is never closed; eight bytes are read.
        unsafe { libc::write(bell.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Whether the signal is ours now.
fn take_signal() -> bool {
    // SAFETY: all zeros are a valid action.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only.
    let asked = unsafe { libc::sigaction(libc::SIGUSR2, std::ptr::null(), &raw mut before) };
    if asked != 0 || before.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ring as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler makes only calls that it may make, and lives as long as the process.
    unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) == 0 }
}
