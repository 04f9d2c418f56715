//! The CUDA driver as far as the tool needs it: devices, memory, streams, events, graphs.

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{DriverError, result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// The names of the driver's library, and where container runtimes put it without telling the loader.
const LIBCUDA: [&str; 5] = [
    "libcuda.so.1",
    "libcuda.so",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

/// Why a GPU cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GpuError {
    #[error(
        "no CUDA driver: {reason}; --backend cuda needs NVIDIA's libcuda.so.1 where the loader finds it (LD_LIBRARY_PATH)"
    )]
    NoDriver { reason: String },
    #[error("{call} failed: {name} ({text})")]
    Start { call: &'static str, name: String, text: String },
    #[error("GPU {device}: {call} failed: {name} ({text})")]
    Call { device: u32, call: &'static str, name: String, text: String },
    #[error("GPU {device}: {bytes} bytes of device memory cannot be had, {free} of {total} are free: {name}")]
    Memory { device: u32, bytes: usize, free: usize, total: usize, name: String },
    #[error("rank {rank} needs GPU {device}, and this machine shows {devices}; --devices names others")]
    NoDevice { rank: u32, device: u32, devices: u32 },
    #[error("--devices names {named} GPUs, and this machine has {needed} ranks")]
    Devices { named: usize, needed: u32 },
    #[error("rank {rank}'s stream on GPU {device} did not finish {what} within {seconds} s")]
    Late { rank: u32, device: u32, what: String, seconds: f64 },
}

/// The driver's name for an error and its sentence.
fn words(error: DriverError) -> (String, String) {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| format!("code {}", error.0 as u32), |text| text.to_string_lossy().into_owned())
    };
    (text(error.error_name()), text(error.error_string()))
}

/// Loads and starts the driver. The number of GPUs that this process sees.
pub fn start() -> Result<u32, GpuError> {
    load()?;
    let failed = |call| {
        move |error| {
            let (name, text) = words(error);
            GpuError::Start { call, name, text }
        }
    };
    result::init().map_err(failed("cuInit"))?;
    let devices = result::device::get_count().map_err(failed("cuDeviceGetCount"))?;
    Ok(devices.max(0) as u32)
}

/// Opens the driver's library from wherever it is, for good: it then answers to its name, under which cudarc, which would panic
/// without it, and libnccl look for it.
fn load() -> Result<(), GpuError> {
    let mut reason = String::new();
    for name in LIBCUDA {
        // SAFETY: its initialisers are those of a library meant to be loaded by any program.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => {
                std::mem::forget(library);
                return Ok(());
            }
            Err(error) if reason.is_empty() => reason = why(&error),
            Err(_) => {}
        }
    }
    Err(GpuError::NoDriver { reason })
}

/// What the loader itself says.
pub fn why(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A GPU's primary context, the one that libraries on the CUDA runtime share.
#[derive(Debug)]
pub struct Device {
    ordinal: u32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
}

impl Device {
    /// Retains the context and makes it current. [`start`] came before.
    pub fn open(ordinal: u32) -> Result<Rc<Device>, GpuError> {
        let failed = |call| move |error| call_failed(ordinal, call, error);
        let handle = result::device::get(ordinal as i32).map_err(failed("cuDeviceGet"))?;
        // SAFETY: a device that the driver has just named.
        let context =
            unsafe { result::primary_ctx::retain(handle) }.map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let device = Device { ordinal, handle, context };
        device.make_current()?;
        Ok(Rc::new(device))
    }

    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The model.
    pub fn name(&self) -> Result<String, GpuError> {
        result::device::get_name(self.handle)
            .map_err(|error| call_failed(self.ordinal, "cuDeviceGetName", error))
    }

    /// What this thread calls next concerns this device.
    pub fn make_current(&self) -> Result<(), GpuError> {
        // SAFETY: the context is retained as long as `self` lives.
        let set = unsafe { result::ctx::set_current(self.context) };
        self.check("cuCtxSetCurrent", set)
    }

    /// Free and all bytes of its memory.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        self.make_current()?;
        self.check("cuMemGetInfo", result::mem_get_info())
    }

    /// Waits for everything on it.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.make_current()?;
        self.check("cuCtxSynchronize", result::ctx::synchronize())
    }

    fn check<T>(&self, call: &'static str, done: Result<T, DriverError>) -> Result<T, GpuError> {
        done.map_err(|error| call_failed(self.ordinal, call, error))
    }
}

#[cold]
fn call_failed(device: u32, call: &'static str, error: DriverError) -> GpuError {
    let (name, text) = words(error);
    GpuError::Call { device, call, name, text }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained by `open`, once; nothing made in it is left, since all of that holds the device.
        // An error of the end has no remedy.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

/// Device memory.
pub struct DeviceMemory {
    device: Rc<Device>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    pub fn new(device: &Rc<Device>, bytes: usize) -> Result<DeviceMemory, GpuError> {
        device.make_current()?;
        // SAFETY: a context is current; no bytes are an error of the driver.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| {
            let (free, total) = result::mem_get_info().unwrap_or((0, 0));
            GpuError::Memory { device: device.ordinal, bytes, free, total, name: words(error).0 }
        })?;
        Ok(DeviceMemory { device: device.clone(), address, bytes })
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// Sets `bytes` bytes from `offset` on.
    pub fn set(&self, offset: usize, bytes: usize, value: u8) -> Result<(), GpuError> {
        let at = self.range(offset, bytes);
        self.device.make_current()?;
        // SAFETY: within this allocation, by `range`.
        let set = unsafe { result::memset_d8_sync(at, value, bytes) };
        self.device.check("cuMemsetD8", set)
    }

    /// Copies to `offset`.
    pub fn upload(&self, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let at = self.range(offset, bytes.len());
        self.device.make_current()?;
        // SAFETY: within this allocation, by `range`.
        let copied = unsafe { result::memcpy_htod_sync(at, bytes) };
        self.device.check("cuMemcpyHtoD", copied)
    }

    /// Copies from `offset`.
    pub fn download(&self, offset: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
        let at = self.range(offset, bytes.len());
        self.device.make_current()?;
        // SAFETY: within this allocation, by `range`.
        let copied = unsafe { result::memcpy_dtoh_sync(bytes, at) };
        self.device.check("cuMemcpyDtoH", copied)
    }

    fn range(&self, offset: usize, bytes: usize) -> sys::CUdeviceptr {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "outside the allocation");
        self.address + offset as u64
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: allocated by `new`. An error of the end has no remedy.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Host memory that the GPU copies from and to at full speed.
pub struct PinnedMemory {
    start: std::ptr::NonNull<u8>,
    bytes: usize,
    device: Rc<Device>,
}

impl PinnedMemory {
    pub fn new(device: &Rc<Device>, bytes: usize) -> Result<PinnedMemory, GpuError> {
        device.make_current()?;
        // SAFETY: a context is current. Portable: good for the other devices too.
        let start = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let start = device.check("cuMemHostAlloc", start)?;
        let null =
            || call_failed(device.ordinal, "cuMemHostAlloc", DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let start = std::ptr::NonNull::new(start.cast::<u8>()).ok_or_else(null)?;
        // SAFETY: the driver's new allocation has this many bytes; this makes them readable.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(PinnedMemory { start, bytes, device: device.clone() })
    }
}

impl Deref for PinnedMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation of `new`, initialised there.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: allocated by `new`. An error of the end has no remedy.
            let _ = unsafe { result::free_host(self.start.as_ptr().cast()) };
        }
    }
}

/// A stream that does not wait for the default one.
pub struct Stream {
    device: Rc<Device>,
    raw: sys::CUstream,
}

impl Stream {
    pub fn new(device: &Rc<Device>) -> Result<Stream, GpuError> {
        device.make_current()?;
        let raw = device
            .check("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(Stream { device: device.clone(), raw })
    }

    /// The handle that libraries take.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    pub fn device(&self) -> &Rc<Device> {
        &self.device
    }

    /// Whether everything on it is done.
    pub fn done(&self) -> Result<bool, GpuError> {
        // SAFETY: made by `new`.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => self.device.check("cuStreamQuery", other.result()).map(|()| true),
        }
    }

    /// What is put on it from now on becomes a graph.
    pub fn begin_capture(&self) -> Result<(), GpuError> {
        self.device.make_current()?;
        // Other threads of this process capture and call at the same time.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: made by `new`.
        self.device.check("cuStreamBeginCapture", unsafe { result::stream::begin_capture(self.raw, mode) })
    }

    /// Ends a capture.
    pub fn end_capture(&self) -> Result<Graph, GpuError> {
        self.device.make_current()?;
        // SAFETY: made by `new`.
        let graph =
            self.device.check("cuStreamEndCapture", unsafe { result::stream::end_capture(self.raw) })?;
        // SAFETY: the graph that the capture gave.
        let made = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: as above; what was instantiated does not need it.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let raw = self.device.check("cuGraphInstantiate", made)?;
        let graph = Graph { device: self.device.clone(), raw };
        self.device.check("cuGraphDestroy", destroyed)?;
        Ok(graph)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: made by `new`. An error of the end has no remedy.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// A point in a stream's work.
pub struct Event {
    device: Rc<Device>,
    raw: sys::CUevent,
}

impl Event {
    pub fn new(device: &Rc<Device>) -> Result<Event, GpuError> {
        device.make_current()?;
        let raw =
            device.check("cuEventCreate", result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(Event { device: device.clone(), raw })
    }

    pub fn record(&self, stream: &Stream) -> Result<(), GpuError> {
        self.device.make_current()?;
        // SAFETY: both exist, and are of this device.
        self.device.check("cuEventRecord", unsafe { result::event::record(self.raw, stream.raw) })
    }

    /// Seconds from `self` to `end`; both have happened.
    pub fn seconds_to(&self, end: &Event) -> Result<f64, GpuError> {
        self.device.make_current()?;
        // SAFETY: both exist.
        let elapsed = unsafe { result::event::elapsed(self.raw, end.raw) };
        Ok(f64::from(self.device.check("cuEventElapsedTime", elapsed)?) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: made by `new`. An error of the end has no remedy.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// Captured work.
pub struct Graph {
    device: Rc<Device>,
    raw: sys::CUgraphExec,
}

impl Graph {
    pub fn launch(&self, stream: &Stream) -> Result<(), GpuError> {
        self.device.make_current()?;
        // SAFETY: both exist, and are of this device.
        self.device.check("cuGraphLaunch", unsafe { result::graph::launch(self.raw, stream.raw) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: made by `end_capture`. An error of the end has no remedy.
            let _ = unsafe { result::graph::exec_destroy(self.raw) };
        }
    }
}
