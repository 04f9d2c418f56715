//! Kernels: loaded from an image, launched on streams.

use super::api::LaunchConfig;
use super::capture::RelaxedCapture;
use super::device::Device;
use super::shape::Shape;
use super::stream::StreamRef;
use crate::gpu::{CudaError, DriverVersion, code};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};
use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Code on a device. Its functions keep it loaded.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    device: Device,
    raw: CUmodule,
    /// The generation of GPUs that it was compiled for; 0 if nobody said.
    sm: u32,
    /// Set once the driver has refused an early launch.
    no_early: OnceLock<()>,
    /// Set once the driver has refused a launch in clusters.
    no_clusters: OnceLock<()>,
}

// SAFETY: a module is a handle that the driver lets every thread use.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Bytes for the log of the driver's compiler.
const LOG_BYTES: usize = 8 << 10;
/// The first driver that captures early launches into graphs.
const EARLY_MIN: DriverVersion = DriverVersion(12_030);
/// The first driver with clusters.
const CLUSTERS_MIN: DriverVersion = DriverVersion(11_080);
/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const JIT_ERROR_LOG: u32 = 5;
const JIT_ERROR_LOG_BYTES: u32 = 6;

impl Module {
    /// Loads an image: a cubin or fatbin for this device, or PTX text, which the driver compiles (and caches on
    /// disk). Works while this thread captures a graph.
    ///
    /// # Errors
    /// [`CudaError::Module`] with the log of the driver's compiler.
    pub fn load(device: &Device, image: &[u8]) -> Result<Module, CudaError> {
        Module::load_for(device, image, 0)
    }

    /// The same, for an image that was compiled for a generation of GPUs.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn load_for(device: &Device, image: &[u8], sm: u32) -> Result<Module, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        // PTX is text that the driver reads up to a zero byte; cubins contain their length, so one more byte is
        // harmless.
        let mut terminated = Vec::with_capacity(image.len() + 1);
        terminated.extend_from_slice(image);
        terminated.push(0);
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES];
        // The driver takes each option's value in the place of a pointer.
        let mut values = [log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void];
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is terminated, the arrays have the length given, and the log the size given; all outlive the call.
        let code = unsafe {
            (device.api().cuModuleLoadDataEx)(
                &mut raw,
                terminated.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code != 0 {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
            let result = device.api().result(code);
            return Err(CudaError::Module { device: device.id(), sm: device.sm(), result, log });
        }
        Ok(Module(Arc::new(Inner {
            device: device.clone(),
            raw,
            sm,
            no_early: OnceLock::new(),
            no_clusters: OnceLock::new(),
        })))
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// [`CudaError::NoFunction`], [`CudaError::Call`].
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        let device = &self.0.device;
        let missing = || CudaError::NoFunction { device: device.id(), name: name.to_owned() };
        let terminated = CString::new(name).map_err(|_| missing())?;
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for a write, the name is terminated, the module is loaded.
        match unsafe { (device.api().cuModuleGetFunction)(&mut raw, self.0.raw, terminated.as_ptr()) } {
            code::NOT_FOUND => Err(missing()),
            code => {
                device.check("cuModuleGetFunction", code)?;
                Ok(Function { module: self.clone(), raw, name: name.into() })
            }
        }
    }

    /// The device it is loaded on.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module on {}", self.0.device.id())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: loaded by this value alone; functions hold it.
        let code = unsafe { (self.device.api().cuModuleUnload)(self.raw) };
        self.device.released("cuModuleUnload", code);
    }
}

/// A kernel.
#[derive(Clone)]
pub struct Function {
    module: Module,
    raw: CUfunction,
    name: Arc<str>,
}

// SAFETY: a function is a handle that the driver lets every thread use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Its name in the module.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The handle, for as long as the function lives.
    pub fn raw(&self) -> CUfunction {
        self.raw
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        self.module.device()
    }

    /// The generation of GPUs that it was compiled for, as compute capability without the dot; 0 if nobody said.
    pub fn sm(&self) -> u32 {
        self.module.0.sm
    }

    /// The most threads a block may have, by its registers and launch bounds.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn threads_max(&self) -> Result<u32, CudaError> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    }

    /// Registers per thread.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn registers(&self) -> Result<u32, CudaError> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    /// Allows launches with more dynamic shared memory than 48 KiB.
    ///
    /// # Errors
    /// [`CudaError::Call`] if the device has less.
    pub fn set_dynamic_shared_max(&self, bytes: u32) -> Result<(), CudaError> {
        let device = self.device();
        let _bound = device.bind()?;
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
        // SAFETY: plain values and a function that lives.
        let code = unsafe { (device.api().cuFuncSetAttribute)(self.raw, attribute, bytes as i32) };
        device.check("cuFuncSetAttribute", code)
    }

    /// Enqueues the kernel. The parameters' values are copied before it returns. On a capturing stream the launch becomes part of the graph.
    /// Where the driver does not know clusters, or has no place for one, each block starts by itself.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if an earlier kernel broke the context, [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. `params` points to one value per parameter of the kernel, each of its parameter's type.
    /// 2. Memory that those values point to is valid for the kernel's accesses, until it is complete.
    pub unsafe fn launch(
        &self,
        shape: Shape,
        stream: StreamRef<'_>,
        params: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let (device, no_clusters) = (self.device(), &self.module.0.no_clusters);
        let _bound = device.bind()?;
        if shape.cluster > 1 && device.driver().version() >= CLUSTERS_MIN && no_clusters.get().is_none() {
            // SAFETY: by 1 and 2.
            match unsafe { self.launch_as(shape, false, stream, params) } {
                code if is_unknown(code) || code == code::INVALID_CLUSTER_SIZE => drop(no_clusters.set(())),
                code => return device.check("cuLaunchKernelEx", code),
            }
        }
        let (params, extra) = (params.as_mut_ptr(), std::ptr::null_mut());
        let Shape { blocks, threads, shared_bytes, .. } = shape;
        // SAFETY: by 1 and 2.
        let code = unsafe {
            (device.api().cuLaunchKernel)(
                self.raw,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                shared_bytes,
                stream.raw(),
                params,
                extra,
            )
        };
        device.check("cuLaunchKernel", code)
    }

    /// As [`Self::launch`], but the kernel may start before the one in front of it on the stream has ended, if that one admits it
    /// (programmatic dependent launch). Where the driver does not know this, it is an ordinary launch.
    ///
    /// # Errors
    /// As for [`Self::launch`].
    ///
    /// # Safety
    /// 1. As [`Self::launch`].
    /// 2. The kernel, as it is loaded, waits by itself for the kernels before it (`griddepcontrol.wait`).
    pub unsafe fn launch_early(
        &self,
        shape: Shape,
        stream: StreamRef<'_>,
        params: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let (device, no_early) = (self.device(), &self.module.0.no_early);
        if device.driver().version() >= EARLY_MIN && no_early.get().is_none() {
            let _bound = device.bind()?;
            let no_clusters = self.module.0.no_clusters.get().is_some();
            let shape = if no_clusters { shape.alone() } else { shape };
            // SAFETY: by 1 and 2.
            match unsafe { self.launch_as(shape, true, stream, params) } {
                // Whichever of the two it is: an ordinary launch finds out about clusters.
                code::INVALID_CLUSTER_SIZE => {}
                code if is_unknown(code) => drop(no_early.set(())),
                code => return device.check("cuLaunchKernelEx", code),
            }
        }
        // SAFETY: by 1.
        unsafe { self.launch(shape, stream, params) }
    }

    /// A launch with attributes; what the driver says. The context is bound.
    ///
    /// # Safety
    /// 1. As [`Self::launch`].
    unsafe fn launch_as(
        &self,
        shape: Shape,
        early: bool,
        stream: StreamRef<'_>,
        params: &mut [*mut c_void],
    ) -> u32 {
        let (mut attributes, attribute_count) = shape.attributes(early);
        let config = LaunchConfig {
            grid: [shape.blocks, 1, 1],
            block: [shape.threads, 1, 1],
            shared_bytes: shape.shared_bytes,
            stream: stream.raw(),
            attributes: attributes.as_mut_ptr(),
            attribute_count,
        };
        let extra = std::ptr::null_mut();
        // SAFETY: by 1; the driver reads the configuration and its attributes before it returns.
        unsafe { (self.device().api().cuLaunchKernelEx)(&config, self.raw, params.as_mut_ptr(), extra) }
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32, CudaError> {
        let device = self.device();
        let mut value = 0;
        // SAFETY: `value` is valid for a write and the function lives.
        let code = unsafe { (device.api().cuFuncGetAttribute)(&mut value, attribute as u32, self.raw) };
        device.check("cuFuncGetAttribute", code).map(|()| value as u32)
    }
}

/// What a driver says of a launch's attribute that it does not know.
fn is_unknown(said: u32) -> bool {
    matches!(said, code::INVALID_VALUE | code::NOT_SUPPORTED)
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {} on {}", self.name, self.device().id())
    }
}
