//! Layer: perf / gpu / nccl.
//! Takes: the path of any `libnccl.so.2`.
//! Gives: the library, its errors in words, and an engine on top of it.
//! Never: a build dependency: the library is opened when a run asks for it. The binary interface is that of nccl.h since 2.7;
//! enum values and sizes have not moved since.

mod symbols;
mod engine;

pub use engine::NcclEngine;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use symbols::{Code, Comm, SUCCESS, Symbols, UniqueId};

/// Why NCCL cannot be used or what it reported.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    #[error(
        "{}: {reason}; another place is given as --engine nccl=/path/to/libnccl.so.2 (PyTorch brings one: site-packages/nvidia/nccl/lib)", .path.display()
    )]
    Open { path: PathBuf, reason: String },
    #[error("{}: no symbol {symbol}; NCCL 2.7 or newer was expected", .path.display())]
    Foreign { path: PathBuf, symbol: &'static str },
    #[error("{}: no symbol {symbol}, which came with NCCL {since}: --register 0 does without", .path.display())]
    Lacks { path: PathBuf, symbol: &'static str, since: &'static str },
    #[error("{function} returned {code} ({text}){detail}")]
    Call { function: &'static str, code: c_int, text: String, detail: String },
}

/// An opened library. It stays open until the process ends: its threads may outlive the last communicator.
pub struct Nccl {
    symbols: Symbols,
    path: PathBuf,
    version: c_int,
}

impl Nccl {
    /// Opens the library.
    pub fn open(path: &Path) -> Result<Rc<Nccl>, NcclError> {
        // Local: several releases can be engines of one run.
        // SAFETY: its initialisers are those of a library meant to be loaded by any program.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| NcclError::Open { path: path.into(), reason: why(&error) })?;
        let symbols =
            Symbols::find(&library).map_err(|symbol| NcclError::Foreign { path: path.into(), symbol })?;
        std::mem::forget(library);
        let mut nccl = Nccl { symbols, path: path.into(), version: 0 };
        let mut version = 0;
        // SAFETY: writes one int.
        let code = unsafe { (nccl.symbols.get_version)(&mut version) };
        nccl.check("ncclGetVersion", code, None)?;
        nccl.version = version;
        Ok(Rc::new(nccl))
    }

    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Major, minor and patch.
    pub fn version(&self) -> (c_int, c_int, c_int) {
        split_version(self.version)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new id for a communicator.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId { internal: [0; 128] };
        // SAFETY: writes one id.
        let code = unsafe { (self.symbols.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code, None)?;
        Ok(id)
    }

    /// Turns a return value into a result.
    pub fn check(&self, function: &'static str, code: Code, comm: Option<Comm>) -> Result<(), NcclError> {
        if code == SUCCESS { Ok(()) } else { Err(self.failed(function, code, comm)) }
    }

    #[cold]
    fn failed(&self, function: &'static str, code: Code, comm: Option<Comm>) -> NcclError {
        // SAFETY: any code is allowed.
        let text = string(unsafe { (self.symbols.get_error_string)(code) });
        let last = self.symbols.get_last_error.map_or(String::new(), |get_last_error| {
            // SAFETY: a live communicator, or null, which stands for the whole library.
            string(unsafe { get_last_error(comm.unwrap_or(std::ptr::null_mut())) })
        });
        let detail = if last.is_empty() { last } else { format!(": {}", last.trim()) };
        NcclError::Call { function, code, text, detail }
    }
}

/// What the loader itself says.
fn why(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A string of the library.
fn string(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library gives static or long-lived strings, ended by zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Releases up to 2.8 count X*1000 + Y*100 + Z, later ones X*10000 + Y*100 + Z.
fn split_version(code: c_int) -> (c_int, c_int, c_int) {
    let major = if code < 10_000 { 1000 } else { 10_000 };
    (code / major, code % major / 100, code % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_kinds() {
        assert_eq!(split_version(2708), (2, 7, 8));
        assert_eq!(split_version(22_809), (2, 28, 9));
        assert_eq!(split_version(23_007), (2, 30, 7));
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = Nccl::open(Path::new("/nowhere/libnccl.so.2")).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("/nowhere/libnccl.so.2") && text.contains("--engine nccl=")));
    }

    #[test]
    fn another_library_is_told_by_what_it_lacks() {
        let error = Nccl::open(Path::new("libc.so.6")).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("no symbol ncclGetVersion")));
    }
}
