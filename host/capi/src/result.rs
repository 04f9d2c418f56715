//! From the library's errors to `ncclResult_t` and the text of `ncclGetLastError`: the one place that maps them.

use crate::types::Code;
use oxccl::{ArgumentError, BootstrapError, ConnectError, Error, Fault, OneSidedError, SelectionError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub code: Code,
    pub text: String,
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub fn invalid_argument(text: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidArgument, text)
    }

    pub fn invalid_usage(text: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidUsage, text)
    }

    pub fn null(name: &str) -> Failure {
        Failure::invalid_argument(format!("{name} is null"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(code_of(&error), error.to_string())
    }
}

impl From<ArgumentError> for Failure {
    fn from(error: ArgumentError) -> Failure {
        Error::from(error).into()
    }
}

impl From<BootstrapError> for Failure {
    fn from(error: BootstrapError) -> Failure {
        Error::from(error).into()
    }
}

impl From<oxccl::cuda::CudaError> for Failure {
    fn from(error: oxccl::cuda::CudaError) -> Failure {
        Failure::new(Code::UnhandledCudaError, error.to_string())
    }
}

fn code_of(error: &Error) -> Code {
    match error {
        Error::Argument(
            ArgumentError::Busy { .. } | ArgumentError::GroupSize { .. } | ArgumentError::Forked { .. },
        ) => Code::InvalidUsage,
        Error::Argument(ArgumentError::GroupMemory { .. }) => Code::SystemError,
        Error::Argument(_) => Code::InvalidArgument,
        Error::Tuner(_) => Code::SystemError,
        Error::Config(_) | Error::Impossible(_) | Error::Tune(_) | Error::Launch(_) => Code::InvalidUsage,
        Error::Bootstrap(error) => code_of_bootstrap(error),
        Error::Connect(error) => code_of_connect(error),
        Error::Operation(error) => code_of_fault(error.fault()),
        Error::Device(_) => Code::UnhandledCudaError,
        Error::OneSided(OneSidedError::NoSuchRank { .. } | OneSidedError::NoSuchSignal { .. }) => {
            Code::InvalidArgument
        }
        Error::Selection(SelectionError::List { .. }) => Code::InvalidArgument,
        Error::OneSided(_) | Error::Selection(_) => Code::InvalidUsage,
        // An error that this crate does not know yet.
        _ => Code::InternalError,
    }
}

fn code_of_bootstrap(error: &BootstrapError) -> Code {
    match error {
        BootstrapError::PeerLost { .. }
        | BootstrapError::PeerAborted { .. }
        | BootstrapError::Unplaced { .. }
        | BootstrapError::PeerLeft { .. }
        | BootstrapError::PeerWentOn { .. }
        | BootstrapError::RootLost { .. }
        | BootstrapError::Unreachable { .. }
        | BootstrapError::MissingRanks { .. } => Code::RemoteError,
        BootstrapError::DuplicateRank { .. }
        | BootstrapError::RootAddrTaken { .. }
        | BootstrapError::RankOutOfRange { .. }
        | BootstrapError::WorldSizeMismatch { .. }
        | BootstrapError::BadMember { .. }
        | BootstrapError::CallsDiffer { .. }
        | BootstrapError::GrowsSmaller { .. } => Code::InvalidUsage,
        BootstrapError::Aborted => Code::InvalidUsage,
        BootstrapError::Timeout { .. } => Code::Timeout,
        _ => Code::SystemError,
    }
}

fn code_of_connect(error: &ConnectError) -> Code {
    match error {
        ConnectError::Bootstrap(error) => code_of_bootstrap(error),
        ConnectError::Device { .. } | ConnectError::P2p(_) => Code::UnhandledCudaError,
        ConnectError::SameDevice { .. }
        | ConnectError::Settings { .. }
        | ConnectError::Encryption { .. }
        | ConnectError::Algorithm { .. } => Code::InvalidUsage,
        ConnectError::PeerFailed { .. } => Code::RemoteError,
        _ => Code::SystemError,
    }
}

fn code_of_fault(fault: Fault) -> Code {
    match fault {
        Fault::Aborted | Fault::Revoked => Code::InvalidUsage,
        Fault::PeerAborted { .. }
        | Fault::PeerDied { .. }
        | Fault::PeerLeft { .. }
        | Fault::PeerFinalized { .. }
        | Fault::Link { .. } => Code::RemoteError,
        Fault::Timeout { .. } | Fault::PeerTimeout { .. } => Code::Timeout,
        Fault::Mismatch { .. }
        | Fault::Placement { .. }
        | Fault::SelfMessages
        | Fault::FinalizedEarly { .. }
        | Fault::CallsDiffer { .. }
        | Fault::MessagesDiffer { .. } => Code::InvalidUsage,
        Fault::Panicked => Code::InternalError,
        Fault::Gpu { .. } => Code::UnhandledCudaError,
    }
}

/// The newest failure of the process: a watchdog thread asks for what happened in another.
static LAST: Mutex<String> = Mutex::new(String::new());

thread_local! {
    /// What this thread was given last; its caller may use the address until it asks again.
    static GIVEN: RefCell<CString> = RefCell::default();
}

/// Keeps a failure's text for `ncclGetLastError`.
pub fn remember(function: &str, failure: &Failure) {
    let text = format!("{function}: {}", failure.text);
    tracing::warn!(target: "nccl", "{text}");
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

/// The text of `own`, else the newest failure's.
pub fn last_error(own: Option<String>) -> *const c_char {
    let text = own.unwrap_or_else(|| LAST.lock().unwrap_or_else(PoisonError::into_inner).clone());
    give(text)
}

/// A text as C reads it: valid until this thread is given another.
pub fn give(text: String) -> *const c_char {
    let mut bytes = text.into_bytes();
    bytes.retain(|byte| *byte != 0);
    let text = CString::new(bytes).unwrap_or_default();
    let kept = GIVEN.try_with(|given| {
        *given.borrow_mut() = text;
        given.borrow().as_ptr()
    });
    // A thread that is ending keeps nothing any more.
    kept.unwrap_or(c"the thread is ending".as_ptr())
}

/// What `ncclGetErrorString` says.
pub fn describe(code: i32) -> &'static CStr {
    match code {
        0 => c"no error",
        1 => c"a call of the CUDA driver failed (ncclGetLastError says which)",
        2 => c"the operating system refused something (ncclGetLastError says what)",
        3 => c"an error of the library itself (ncclGetLastError says more)",
        4 => c"invalid argument (ncclGetLastError says which)",
        5 => c"invalid usage (ncclGetLastError says what to do instead)",
        6 => c"another rank failed, ended or cannot be reached (ncclGetLastError names it)",
        7 => c"the operation is in progress",
        8 => c"a wait took longer than its time-out (ncclGetLastError names the rank)",
        _ => c"unknown result code",
    }
}

/// What a function's body may end with, besides a failure.
pub trait Done {
    fn code(self) -> Code;
}

impl Done for () {
    fn code(self) -> Code {
        Code::Success
    }
}

impl Done for Code {
    fn code(self) -> Code {
        self
    }
}

/// Runs the body of an exported function; a panic ends here.
pub fn run<T: Done>(function: &'static str, body: impl FnOnce() -> Outcome<T>) -> Code {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        let text = "a defect of the library: it panicked, and the message is on standard error";
        Err(Failure::new(Code::InternalError, text))
    });
    match outcome {
        Ok(done) => done.code(),
        Err(failure) => {
            remember(function, &failure);
            failure.code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_internal_error() {
        std::panic::set_hook(Box::new(|_| ()));
        let code = run::<()>("f", || panic!("why"));
        let _ = std::panic::take_hook();
        assert_eq!(code, Code::InternalError);
    }

    #[test]
    fn the_newest_failure_is_told_to_every_thread() {
        run::<()>("ncclX", || Err(Failure::invalid_usage("do that instead")));
        let text = std::thread::spawn(|| {
            // SAFETY: the thread asks once.
            unsafe { CStr::from_ptr(last_error(None)) }.to_string_lossy().into_owned()
        });
        let text = text.join().expect("the thread does not panic");
        assert!(text.contains("ncclX: do that instead") || !text.is_empty());
    }

    #[test]
    fn every_code_has_a_text() {
        let texts: std::collections::HashSet<&CStr> = (0..9).map(describe).collect();
        assert_eq!(texts.len(), 9);
        assert_eq!(describe(-1), describe(9));
    }
}
