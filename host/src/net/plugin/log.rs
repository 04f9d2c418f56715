//! A plugin's log messages: they go to the program's log, and the last warning into errors.

use super::abi::{Code, Logger, Opaque};
use core::ffi::{CStr, c_char, c_int};
use std::cell::RefCell;
use std::sync::Once;

/// `NCCL_LOG_WARN`.
const WARN: c_int = 2;
/// `NCCL_LOG_TRACE`.
const TRACE: c_int = 5;

unsafe extern "C" {
    safe fn oxccl_plugin_set_sink(sink: unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char));
    fn oxccl_plugin_log(
        level: c_int,
        flags: u64,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    );
}

thread_local! {
    /// The last warning on this thread.
    static WARNED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The logger for plugins.
pub fn logger() -> Logger {
    static SINK: Once = Once::new();
    SINK.call_once(|| oxccl_plugin_set_sink(log_message));
    oxccl_plugin_log
}

/// # Safety
/// Pointers are strings or null.
unsafe extern "C" fn log_message(level: c_int, file: *const c_char, line: c_int, text: *const c_char) {
    let string = |at: *const c_char| {
        // SAFETY: the caller's promise.
        if at.is_null() { "".into() } else { unsafe { CStr::from_ptr(at) }.to_string_lossy() }
    };
    let (file, text) = (string(file), string(text));
    match level {
        WARN => {
            tracing::warn!("plugin: {file}:{line}: {text}");
            // A thread that is exiting has no storage left.
            let _ = WARNED.try_with(|last| last.replace(text.into_owned()));
        }
        TRACE => tracing::trace!("plugin: {file}:{line}: {text}"),
        _ => tracing::debug!("plugin: {file}:{line}: {text}"),
    }
}

/// Clears earlier warnings; then [`describe`] reports those of the following call.
pub fn begin() {
    WARNED.with(|last| last.borrow_mut().clear());
}

/// An `ncclResult_t` as text, with the plugin's last warning since [`begin`].
pub fn describe(code: Code) -> String {
    let meaning = match code {
        1 => "a CUDA call failed",
        2 => "a system call failed",
        3 => "internal error",
        4 => "invalid argument",
        5 => "invalid usage",
        6 => "remote error: the other end is gone",
        7 => "still in progress",
        _ => "a result that NCCL does not define",
    };
    WARNED.with(|last| match last.borrow().as_str() {
        "" => format!("{meaning} (ncclResult {code})"),
        text => format!("{meaning} (ncclResult {code}): {text}"),
    })
}

/// A profiler callback that ignores everything.
///
/// # Safety
/// None: it reads no argument.
pub unsafe extern "C" fn profiler(_: *mut Opaque, _: c_int, _: Opaque, _: i64, _: Opaque) -> Code {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_warning_is_part_of_an_error() {
        begin();
        assert_eq!(describe(2), "a system call failed (ncclResult 2)");
        let log = logger();
        // SAFETY: strings, and one argument for the one place of the format.
        unsafe {
            log(WARN, 0, c"net.c".as_ptr(), 7, c"port %d is %s".as_ptr(), 3 as c_int, c"down".as_ptr())
        };
        // SAFETY: as above.
        unsafe { log(3, 0, c"net.c".as_ptr(), 8, c"chatter".as_ptr()) };
        assert_eq!(describe(6), "remote error: the other end is gone (ncclResult 6): port 3 is down");
        begin();
        assert!(!describe(6).contains("down"));
    }
}
