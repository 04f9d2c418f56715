//! Files that grow to the limit of their process (RLIMIT_FSIZE).

use std::io;
use std::mem::MaybeUninit;

/// Writes to a file without ending the process where the file reaches its limit: the kernel sends SIGXFSZ then, whose default is to kill,
/// besides failing the call. A program's own handler or mask is as before, and its own pending signal stays.
pub(crate) fn write_within_limit<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signal = only_file_limit();
    let is_pending_before = is_pending();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are valid, and only this thread's mask changes.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signal, before.as_mut_ptr()) };
    let written = write();
    if blocked != 0 {
        return written;
    }
    if !is_pending_before && is_pending() {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are valid, and nobody asks for details.
        unsafe { libc::sigtimedwait(&raw const signal, std::ptr::null_mut(), &raw const now) };
    }
    // SAFETY: the call that blocked the signal wrote the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    written
}

/// The set of this one signal.
fn only_file_limit() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the place is valid for a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the call above initialised it.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: a valid set, and a signal that exists.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGXFSZ) };
    set
}

fn is_pending() -> bool {
    let mut set = only_file_limit();
    // SAFETY: the place is valid for a set.
    if unsafe { libc::sigpending(&raw mut set) } != 0 {
        return false;
    }
    // SAFETY: the call above filled it.
    unsafe { libc::sigismember(&raw const set, libc::SIGXFSZ) == 1 }
}

/// The limit as advice, if it is what an error is about.
pub(super) fn advice(error: &io::Error) -> Option<String> {
    if error.raw_os_error() != Some(libc::EFBIG) {
        return None;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current?;
    Some(format!(
        "{error}: a file of this process may have {limit} bytes (RLIMIT_FSIZE); raise the limit (ulimit -f, LimitFSIZE= of a systemd unit)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::describe;
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::io::Write;

    /// 0: a write beyond the limit fails, and all about the signal is as it was. Without care the child ends by the signal.
    fn in_child(mut file: std::fs::File) -> i32 {
        let _ = setrlimit(Resource::Fsize, Rlimit { current: Some(4), maximum: Some(4) });
        let signal = only_file_limit();
        let refused =
            write_within_limit(|| file.write_all(b"longer than four")).map_err(|error| describe(&error));
        if !refused.is_err_and(|text| text.contains("may have 4 bytes") && text.contains("ulimit -f")) {
            return 1;
        }
        let mut mask = only_file_limit();
        // SAFETY: asks for the mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask) };
        // SAFETY: a valid set.
        if is_pending() || unsafe { libc::sigismember(&raw const mask, libc::SIGXFSZ) } != 0 {
            return 2;
        }
        // A program that blocks the signal, and has one pending, keeps it.
        // SAFETY: a valid set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signal, std::ptr::null_mut()) };
        // SAFETY: the signal is blocked.
        unsafe { libc::raise(libc::SIGXFSZ) };
        let refused = write_within_limit(|| file.write_all(b"longer than four"));
        if refused.is_err() && is_pending() { 0 } else { 3 }
    }

    #[test]
    fn a_file_at_its_limit_is_an_error_and_no_signal() {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: the child has one thread, and glibc's allocator works in forked children.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = in_child(file);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the place is valid.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }
}
