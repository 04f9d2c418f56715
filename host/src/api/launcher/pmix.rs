//! The key-value space of launchers that speak PMIx (Open MPI's mpirun, Slurm's `srun --mpi=pmix`), by its library, which is loaded when
//! it is needed: the wire protocol is not the standard's.
//!
//! Numbers and layouts are those of the PMIx standard, version 4 (chapters 3, 5 and 7), which all of `libpmix.so.2` share.

use super::error::LaunchError;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

const KEY: &CStr = c"oxccl-unique-id";
const SUCCESS: c_int = 0;
/// `PMIX_GLOBAL`: for processes on every host.
const GLOBAL: u8 = 3;
/// `PMIX_STRING`.
const STRING: u16 = 3;
/// `PMIX_MAX_NSLEN` and a zero byte.
const NAMESPACE_BYTES: usize = 256;
const FILE: &str = "libpmix.so.2";

/// `pmix_proc_t`.
#[repr(C)]
struct Proc {
    namespace: [c_char; NAMESPACE_BYTES],
    rank: u32,
}

const _: () = assert!(size_of::<Proc>() == 260 && std::mem::offset_of!(Proc, rank) == 256);

/// The head of `pmix_value_t`: of its union this reads and writes a string alone. The rest is room for what later versions add.
#[repr(C)]
struct Value {
    kind: u16,
    string: *mut c_char,
    _room: [u64; 14],
}

const _: () = assert!(std::mem::offset_of!(Value, string) == 8);

type Init = unsafe extern "C" fn(*mut Proc, *const c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;

/// The library.
pub struct Pmix(Library);

fn failed(what: &str, code: c_int) -> LaunchError {
    LaunchError::Pmi { why: format!("{what} of PMIx failed with {code}") }
}

impl Pmix {
    /// The launcher's own library, else the system's. `prefix` is where the launcher lies (`PMIX_PREFIX`).
    ///
    /// # Errors
    /// [`LaunchError::Pmi`]: there is none.
    pub fn load(prefix: Option<&str>) -> Result<Pmix, LaunchError> {
        let own = prefix.map(|prefix| PathBuf::from(prefix).join("lib").join(FILE));
        let mut why = String::new();
        for file in own.into_iter().filter(|file| file.exists()).chain([PathBuf::from(FILE)]) {
            // SAFETY: its initialisers ask for nothing; MPI programs load it the same way.
            match unsafe { Library::new(&file) } {
                Ok(library) => return Ok(Pmix(library)),
                Err(error) => why = error.to_string(),
            }
        }
        Err(LaunchError::Pmi { why: format!("the launcher speaks PMIx, and {FILE} cannot be loaded: {why}") })
    }

    /// Every rank gets rank 0's value, which is given by rank 0. Every rank calls it once.
    ///
    /// The library's calls have no time limit that every server keeps: a thread makes them, and stays behind if they never end.
    ///
    /// # Errors
    /// [`LaunchError::Pmi`] within `timeout`.
    pub fn broadcast(self, value: Option<String>, timeout: Duration) -> Result<String, LaunchError> {
        let (done, result) = mpsc::channel();
        let converse = move || {
            // Nobody waits for the result after the time limit.
            let _ = done.send(self.exchange(value));
        };
        let thread = std::thread::Builder::new().name("oxccl-pmix".into()).spawn(converse);
        thread.map_err(|error| LaunchError::Pmi { why: format!("there is no thread for PMIx: {error}") })?;
        let late = || LaunchError::Pmi { why: format!("PMIx did not answer within {} s", timeout.as_secs()) };
        result.recv_timeout(timeout).map_err(|_| late())?
    }

    fn symbol<T: Copy>(&self, name: &CStr) -> Result<T, LaunchError> {
        // SAFETY: every caller names a function of the standard with its type.
        let found = unsafe { self.0.get::<T>(name.to_bytes_with_nul()) };
        let missing = |_| LaunchError::Pmi { why: format!("{FILE} has no {}", name.to_string_lossy()) };
        found.map(|symbol| *symbol).map_err(missing)
    }

    fn exchange(&self, value: Option<String>) -> Result<String, LaunchError> {
        let init: Init = self.symbol(c"PMIx_Init")?;
        let finalize: Finalize = self.symbol(c"PMIx_Finalize")?;
        let mut own = Proc { namespace: [0; NAMESPACE_BYTES], rank: 0 };
        // SAFETY: `own` takes this process's name; there are no further settings.
        let code = unsafe { init(&mut own, std::ptr::null(), 0) };
        if code != SUCCESS {
            return Err(failed("PMIx_Init", code));
        }
        let result = self.put_and_get(&own, value);
        // SAFETY: after the initialisation above. A program that has initialised MPI holds the library beyond this.
        let code = unsafe { finalize(std::ptr::null(), 0) };
        result.and_then(|value| if code == SUCCESS { Ok(value) } else { Err(failed("PMIx_Finalize", code)) })
    }

    fn put_and_get(&self, own: &Proc, value: Option<String>) -> Result<String, LaunchError> {
        if let Some(value) = value {
            self.put(&value)?;
        }
        // Until all have put, and until all have got: nobody's server goes before.
        self.fence()?;
        let got = self.get(&Proc { namespace: own.namespace, rank: 0 });
        self.fence()?;
        got
    }

    fn put(&self, text: &str) -> Result<(), LaunchError> {
        let (put, commit): (Put, Commit) = (self.symbol(c"PMIx_Put")?, self.symbol(c"PMIx_Commit")?);
        let text =
            CString::new(text).map_err(|_| LaunchError::Pmi { why: "a value with a zero byte".into() })?;
        let mut value = Value { kind: STRING, string: text.as_ptr().cast_mut(), _room: [0; 14] };
        // SAFETY: the library copies the key and the string.
        let code = unsafe { put(GLOBAL, KEY.as_ptr(), &mut value) };
        if code != SUCCESS {
            return Err(failed("PMIx_Put", code));
        }
        // SAFETY: it takes nothing.
        let code = unsafe { commit() };
        if code == SUCCESS { Ok(()) } else { Err(failed("PMIx_Commit", code)) }
    }

    fn fence(&self) -> Result<(), LaunchError> {
        let fence: Fence = self.symbol(c"PMIx_Fence")?;
        // SAFETY: no names are all processes of the job; there are no settings.
        let code = unsafe { fence(std::ptr::null(), 0, std::ptr::null(), 0) };
        if code == SUCCESS { Ok(()) } else { Err(failed("PMIx_Fence", code)) }
    }

    fn get(&self, from: &Proc) -> Result<String, LaunchError> {
        let get: Get = self.symbol(c"PMIx_Get")?;
        let mut found: *mut Value = std::ptr::null_mut();
        // SAFETY: name and key are read; `found` takes a value that is the caller's.
        let code = unsafe { get(from, KEY.as_ptr(), std::ptr::null(), 0, &mut found) };
        if code != SUCCESS || found.is_null() {
            return Err(failed("PMIx_Get of rank 0's value", code));
        }
        // SAFETY: it is a value of the library's, at least as long as its head. It is left to the process: how it is freed differs
        // between versions.
        let (kind, string) = unsafe { (&raw const (*found).kind, &raw const (*found).string) };
        // SAFETY: both fields are within the value.
        let (kind, string) = unsafe { (kind.read(), string) };
        if kind != STRING {
            return Err(LaunchError::Pmi {
                why: format!("rank 0's value is of type {kind} of PMIx, no text"),
            });
        }
        // SAFETY: as above; of this type, the field is a string.
        let string = unsafe { string.read() };
        if string.is_null() {
            return Err(LaunchError::Pmi { why: "rank 0's value is no text".into() });
        }
        // SAFETY: it ends with a zero byte.
        Ok(unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned())
    }
}
