//! The driver's library, loaded at first use.

use super::api::Api;
use crate::gpu::{CuResult, CudaError, DriverVersion, code};
use libloading::Library;
use std::ffi::CStr;
use std::sync::OnceLock;

/// The initialised driver of this host.
pub struct Driver {
    pub(super) api: Api,
    version: DriverVersion,
    device_count: u32,
}

/// The name that drivers install comes first: `libcuda.so` may be a toolkit's stub.
const FILES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The oldest driver that supports every GPU with kernels here.
const VERSION_MIN: DriverVersion = DriverVersion(12_000);

impl Driver {
    /// The driver. The first call loads and initialises its library and counts devices; the result, a failure too,
    /// holds for the life of the process.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::DriverTooOld`], [`CudaError::Start`], [`CudaError::NoDevice`].
    pub fn get() -> Result<&'static Driver, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(|| Driver::start(&FILES)).as_ref().map_err(Clone::clone)
    }

    fn start(files: &[&str]) -> Result<Driver, CudaError> {
        let library = load(files)?;
        let version = version_of(&library).unwrap_or(DriverVersion(0));
        let too_old = |missing| CudaError::DriverTooOld { found: version, needed: VERSION_MIN, missing };
        if version < VERSION_MIN {
            return Err(too_old(None));
        }
        // SAFETY: (1) the library has the driver's file name and reported its version.
        let api = unsafe { Api::find(library) }.map_err(|name| too_old(Some(name)))?;
        // SAFETY: the driver's first call; it takes no pointer.
        match unsafe { (api.cuInit)(0) } {
            0 => {}
            code::NO_DEVICE => return Err(CudaError::NoDevice),
            other => return Err(CudaError::Start { result: api.result(other) }),
        }
        let mut count = 0;
        // SAFETY: `count` is valid for a write.
        match unsafe { (api.cuDeviceGetCount)(&mut count) } {
            0 if count > 0 => Ok(Driver { api, version, device_count: count as u32 }),
            0 => Err(CudaError::NoDevice),
            other => Err(CudaError::Start { result: api.result(other) }),
        }
    }

    /// The driver's version of CUDA.
    pub fn version(&self) -> DriverVersion {
        self.version
    }

    /// Devices that this process sees; at least one.
    pub fn device_count(&self) -> u32 {
        self.device_count
    }
}

impl Api {
    /// A result code with its name.
    pub(super) fn result(&self, code: u32) -> CuResult {
        let mut name = std::ptr::null();
        // SAFETY: `name` is valid for a write; every number is allowed as a code.
        let found = unsafe { (self.cuGetErrorName)(code, &mut name) } == 0 && !name.is_null();
        // SAFETY: the driver's names are terminated strings that live as long as its library, which is never unloaded.
        let name = found.then(|| unsafe { CStr::from_ptr(name) }.to_str().ok()).flatten();
        CuResult { code, name: name.unwrap_or("unknown result") }
    }
}

fn load(files: &[&str]) -> Result<Library, CudaError> {
    let mut first = None;
    for file in files {
        // SAFETY: the initialisers of NVIDIA's library have no requirements; an attacker who puts another file of
        // this name into the loader's path could as well replace this library.
        match unsafe { Library::new(*file) } {
            Ok(library) => return Ok(library),
            Err(error) => first = first.or(Some(error)),
        }
    }
    let why = first.map_or_else(String::new, |error| reason(&error));
    Err(CudaError::NoDriver { tried: files.join(", "), why })
}

/// The loader's error, which `libloading` keeps as the error's source.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The version, from the one function that every driver has and that works before initialisation.
fn version_of(library: &Library) -> Option<DriverVersion> {
    type GetVersion = unsafe extern "C" fn(*mut std::ffi::c_int) -> u32;
    // SAFETY: the type is that of the driver's manual.
    let get = unsafe { library.get::<GetVersion>(b"cuDriverGetVersion\0") }.ok()?;
    let mut version = 0;
    // SAFETY: `version` is valid for a write.
    let code = unsafe { get(&mut version) };
    (code == 0).then_some(DriverVersion(version.max(0) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(DriverVersion(12_080).to_string(), "12.8");
        assert_eq!(DriverVersion(13_000).to_string(), "13.0");
        assert!(DriverVersion(12_080) >= VERSION_MIN);
    }

    #[test]
    fn a_missing_library_is_an_error_that_names_the_files() {
        let error = Driver::start(&["libno-such-driver.so.1", "libno-such-driver.so"]).err().unwrap();
        let said = error.to_string();
        assert!(said.contains("libno-such-driver.so.1, libno-such-driver.so"), "{said}");
        assert!(said.contains("cannot open shared object file"), "{said}");
        assert!(said.contains("--gpus all"), "{said}");
    }

    #[test]
    fn a_library_that_is_no_driver_is_too_old_and_not_a_crash() {
        let error = Driver::start(&["libc.so.6"]).err().unwrap();
        let expected =
            CudaError::DriverTooOld { found: DriverVersion(0), needed: VERSION_MIN, missing: None };
        assert_eq!(error, expected);
        assert!(error.to_string().contains("12.0 or newer is needed"), "{error}");
    }
}
