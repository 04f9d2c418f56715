//! What the process has opened, and how calls end.

use oxccl::Config;
use oxccl::net::coll::{self, CollNet};
use oxccl::net::plugin::abi::{Code, Logger};
use oxccl::net::{Net, NetError, aggregate, socket};
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// `ncclSuccess`.
pub const SUCCESS: Code = 0;
/// `ncclSystemError`.
const SYSTEM_ERROR: Code = 2;
/// `ncclInternalError`.
const INTERNAL_ERROR: Code = 3;
/// `ncclInvalidArgument`.
const INVALID_ARGUMENT: Code = 4;
/// `ncclRemoteError`.
const REMOTE_ERROR: Code = 6;
/// `NCCL_LOG_WARN`.
const LOG_WARN: c_int = 2;
/// `NCCL_LOG_INFO`.
const LOG_INFO: c_int = 3;
/// `NCCL_NET` among the subsystems of a message.
const LOG_NET: u64 = 0x10;

/// Why a call fails.
pub enum Failed {
    /// Of the network.
    Net(NetError),
    /// Of the settings or of what NCCL passed.
    Argument(String),
    /// Nobody asked for it.
    Unused(&'static str),
}

impl From<NetError> for Failed {
    fn from(error: NetError) -> Failed {
        Failed::Net(error)
    }
}

/// An argument is wrong.
pub fn wrong<T>(what: impl Into<String>) -> Result<T, Failed> {
    Err(Failed::Argument(what.into()))
}

impl Failed {
    fn code(&self) -> Code {
        match self {
            Failed::Argument(_) | Failed::Net(NetError::NoDevice { .. } | NetError::BadHandle { .. }) => {
                INVALID_ARGUMENT
            }
            Failed::Unused(_) => SYSTEM_ERROR,
            Failed::Net(NetError::Closed { .. }) => REMOTE_ERROR,
            Failed::Net(NetError::Unsupported { .. }) => INTERNAL_ERROR,
            Failed::Net(_) => SYSTEM_ERROR,
        }
    }

    fn text(&self) -> String {
        match self {
            Failed::Net(error) => error.to_string(),
            Failed::Argument(what) => what.clone(),
            Failed::Unused(what) => (*what).to_owned(),
        }
    }
}

/// Where NCCL wants messages.
static LOGGER: Mutex<Option<Logger>> = Mutex::new(None);

/// From now on reasons go there.
pub fn log_to(logger: Logger) {
    *LOGGER.lock().unwrap_or_else(PoisonError::into_inner) = Some(logger);
}

/// The end of a call into the plugin: its code, and its reason in NCCL's log.
pub fn ended(call: &str, body: impl FnOnce() -> Result<(), Failed>) -> Code {
    let (level, code, text) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(failed @ Failed::Unused(_))) => (LOG_INFO, failed.code(), failed.text()),
        Ok(Err(failed)) => (LOG_WARN, failed.code(), failed.text()),
        Err(_) => (LOG_WARN, INTERNAL_ERROR, "a panic".to_owned()),
    };
    log(level, &format!("NET/OxCCL : {call}: {text}"));
    code
}

fn log(level: c_int, text: &str) {
    let Some(logger) = *LOGGER.lock().unwrap_or_else(PoisonError::into_inner) else { return };
    let Ok(text) = CString::new(text.replace('\0', " ")) else { return };
    let (file, format): (*const c_char, *const c_char) = (c"netplugin".as_ptr(), c"%s".as_ptr());
    // SAFETY: NCCL's logger, with a format and what it asks for.
    unsafe { logger(level, LOG_NET, file, 0, format, text.as_ptr()) };
}

/// The settings of the environment, but for those of NCCL's that are no network's: what NCCL takes for `NCCL_ALGO`, this library may not know.
fn config() -> Result<Config, Failed> {
    let is_read = |name: &str| {
        ["OXCCL_", "NCCL_SOCKET_", "NCCL_NSOCKS_", "NCCL_IB_"].iter().any(|prefix| name.starts_with(prefix))
    };
    let lookup = |name: &str| if is_read(name) { Config::variable(name) } else { None };
    Config::from_lookup(&lookup).or_else(|error| wrong(error.to_string()))
}

/// The sockets of this host.
pub fn net() -> Result<&'static Arc<dyn Net>, Failed> {
    static NET: OnceLock<Arc<dyn Net>> = OnceLock::new();
    once(&NET, || Ok(socket::open(&config()?.net.socket)?))
}

/// The aggregators that `OXCCL_AGGREGATOR` names, if it names any.
pub fn coll() -> Result<&'static Option<Arc<dyn CollNet>>, Failed> {
    static COLL: OnceLock<Option<Arc<dyn CollNet>>> = OnceLock::new();
    once(&COLL, || {
        let net = config()?.net;
        let Some(aggregators) = &net.coll.aggregators else { return Ok(None) };
        Ok(Some(aggregate::open(aggregators, coll::carriage(&net, aggregators)?)?))
    })
}

/// How long heads wait for each other.
pub fn patience() -> Result<std::time::Duration, Failed> {
    Ok(config()?.bootstrap.timeout)
}

/// A failure is of this call: the next tries again.
fn once<T>(
    place: &'static OnceLock<T>,
    make: impl FnOnce() -> Result<T, Failed>,
) -> Result<&'static T, Failed> {
    if let Some(made) = place.get() {
        return Ok(made);
    }
    let made = make()?;
    Ok(place.get_or_init(|| made))
}
