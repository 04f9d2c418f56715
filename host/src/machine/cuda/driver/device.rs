//! A GPU and its context in this process.

use super::library::Driver;
use crate::gpu::{CuResult, CudaError, DeviceId, MemoryKind, PciBus, code};
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUuuid};
use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::api::Api;

/// A GPU with its primary context, which the CUDA runtime uses too. Clones share it; dropping the last one releases
/// the context.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    driver: &'static Driver,
    id: DeviceId,
    handle: CUdevice,
    context: CUcontext,
    name: String,
    uuid: [u8; 16],
    memory_bytes: usize,
    sm: u32,
    sm_count: u32,
    shared_max: u32,
}

// SAFETY: a context is a handle that every thread may use, and the rest never changes.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Device {
    /// Opens the device with this ordinal, and creates its primary context if this process has none yet.
    ///
    /// # Errors
    /// Those of [`Driver::get`], [`CudaError::NoSuchDevice`], [`CudaError::Call`] if the driver creates no context.
    pub fn open(ordinal: u32) -> Result<Device, CudaError> {
        let driver = Driver::get()?;
        let handle = handle_of(driver, ordinal)?;
        let facts = Facts { driver, handle, id: DeviceId { ordinal, bus: PciBus::default() } };
        let id = DeviceId { ordinal, bus: facts.bus()? };
        let facts = Facts { id, ..facts };
        let (name, uuid, memory_bytes) = (facts.name()?, facts.uuid()?, facts.memory_bytes()?);
        let (sm, sm_count) = facts.sm()?;
        let shared_max = facts.shared_max()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is valid for a write and `handle` is a device's.
        let code = unsafe { (driver.api.cuDevicePrimaryCtxRetain)(&mut context, handle) };
        driver.api.check(id, "cuDevicePrimaryCtxRetain", code)?;
        Ok(Device(Arc::new(Inner {
            driver,
            id,
            handle,
            context,
            name,
            uuid,
            memory_bytes,
            sm,
            sm_count,
            shared_max,
        })))
    }

    /// The ordinal of the visible device with this UUID, if there is one.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn ordinal_of(uuid: &[u8; 16]) -> Result<Option<u32>, CudaError> {
        let driver = Driver::get()?;
        for ordinal in 0..driver.device_count() {
            let handle = handle_of(driver, ordinal)?;
            let id = DeviceId { ordinal, bus: PciBus::default() };
            let facts = Facts { driver, handle, id };
            if facts.uuid()? == *uuid {
                return Ok(Some(ordinal));
            }
        }
        Ok(None)
    }

    /// The ordinal of the device whose context is current on this thread; 0 if none is, as CUDA's runtime has it.
    ///
    /// # Errors
    /// Those of [`Driver::get`], [`CudaError::Call`].
    pub fn current() -> Result<u32, CudaError> {
        let driver = Driver::get()?;
        let id = DeviceId { ordinal: 0, bus: PciBus::default() };
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is valid for a write.
        let code = unsafe { (driver.api.cuCtxGetCurrent)(&mut context) };
        driver.api.check(id, "cuCtxGetCurrent", code)?;
        if context.is_null() {
            return Ok(0);
        }
        let mut current = 0;
        // SAFETY: `current` is valid for a write, and a context is current.
        let code = unsafe { (driver.api.cuCtxGetDevice)(&mut current) };
        driver.api.check(id, "cuCtxGetDevice", code)?;
        for ordinal in 0..driver.device_count() {
            if handle_of(driver, ordinal)? == current {
                return Ok(ordinal);
            }
        }
        Ok(0)
    }

    /// Its name in messages.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// Its CUDA ordinal in this process.
    pub fn ordinal(&self) -> u32 {
        self.0.id.ordinal
    }

    /// Its name, such as "NVIDIA H200".
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its UUID: the same in every process, different for each part of a divided GPU (MIG).
    pub fn uuid(&self) -> [u8; 16] {
        self.0.uuid
    }

    /// Its compute capability, major times ten plus minor: 90 for H200.
    pub fn sm(&self) -> u32 {
        self.0.sm
    }

    /// Its multiprocessors.
    pub fn sm_count(&self) -> u32 {
        self.0.sm_count
    }

    /// Shared memory that a block may have at most, if its kernel asks for so much.
    pub fn shared_max(&self) -> u32 {
        self.0.shared_max
    }

    /// Its memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.0.memory_bytes
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    /// Its primary context.
    pub fn context(&self) -> CUcontext {
        self.0.context
    }

    /// Whether kernels here can access the memory of `other`.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn can_access(&self, other: &Device) -> Result<bool, CudaError> {
        self.can_access_ordinal(other.ordinal())
    }

    /// As [`Self::can_access`], without a context on the other device.
    ///
    /// # Errors
    /// [`CudaError::NoSuchDevice`], [`CudaError::Call`].
    pub fn can_access_ordinal(&self, other: u32) -> Result<bool, CudaError> {
        if other == self.ordinal() {
            return Ok(true);
        }
        let other = handle_of(self.0.driver, other)?;
        let mut can = 0;
        // SAFETY: `can` is valid for a write and both handles are devices'.
        let code = unsafe { (self.api().cuDeviceCanAccessPeer)(&mut can, self.0.handle, other) };
        self.check("cuDeviceCanAccessPeer", code).map(|()| can != 0)
    }

    /// Enables access from kernels here to past and future `cuMemAlloc` allocations of `other`. It is never disabled:
    /// other users of the context may rely on it.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn enable_peer(&self, other: &Device) -> Result<(), CudaError> {
        if other.ordinal() == self.ordinal() {
            return Ok(());
        }
        let _bound = self.bind()?;
        // SAFETY: both contexts live; this one is current.
        match unsafe { (self.api().cuCtxEnablePeerAccess)(other.context(), 0) } {
            code::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => self.check("cuCtxEnablePeerAccess", code),
        }
    }

    /// Makes the context current on this thread until the guard is dropped.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn bind(&self) -> Result<ContextGuard<'_>, CudaError> {
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` is valid for a write.
        let code = unsafe { (self.api().cuCtxGetCurrent)(&mut current) };
        self.check("cuCtxGetCurrent", code)?;
        let pushed = current != self.0.context;
        if pushed {
            // SAFETY: the context lives as long as `self`, which the guard borrows.
            let code = unsafe { (self.api().cuCtxPushCurrent_v2)(self.0.context) };
            self.check("cuCtxPushCurrent", code)?;
        }
        Ok(ContextGuard { device: self, pushed, _not_send: PhantomData })
    }

    /// Waits for all work of this process on the device.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel broke the context, [`CudaError::Call`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _bound = self.bind()?;
        // SAFETY: a context is current.
        self.check("cuCtxSynchronize", unsafe { (self.api().cuCtxSynchronize)() })
    }

    /// Free bytes and total bytes of the device, for all processes.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn memory_info(&self) -> Result<(usize, usize), CudaError> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid for writes; a context is current.
        let code = unsafe { (self.api().cuMemGetInfo_v2)(&mut free, &mut total) };
        self.check("cuMemGetInfo", code).map(|()| (free, total))
    }

    /// Whether allocations of this device can be exported as file descriptors.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn exports_fds(&self) -> Result<bool, CudaError> {
        let maps = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let fds = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        Ok(self.attribute(maps)? != 0 && self.attribute(fds)? != 0)
    }

    pub(super) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, CudaError> {
        let Inner { driver, id, handle, .. } = *self.0;
        Facts { driver, handle, id }.attribute(attribute)
    }

    pub(super) fn api(&self) -> &'static Api {
        &self.0.driver.api
    }

    /// Converts a result code to an error that names this device.
    pub(super) fn check(&self, operation: &'static str, code: u32) -> Result<(), CudaError> {
        self.api().check(self.0.id, operation, code)
    }

    /// As [`Self::check`], for results of cudarc's calls.
    pub(in crate::machine::cuda) fn check_code(
        &self,
        operation: &'static str,
        code: u32,
    ) -> Result<(), CudaError> {
        self.check(operation, code)
    }

    /// As [`Self::check`], for a call that allocates.
    pub(super) fn check_memory(
        &self,
        operation: &'static str,
        kind: MemoryKind,
        wanted_bytes: usize,
        code: u32,
    ) -> Result<(), CudaError> {
        if code != code::OUT_OF_MEMORY {
            return self.check(operation, code);
        }
        let (free_bytes, total_bytes) = self.memory_info().unwrap_or((0, self.memory_bytes()));
        Err(CudaError::OutOfMemory { device: self.id(), kind, wanted_bytes, free_bytes, total_bytes })
    }

    /// For destructors, which cannot report errors. At exit the driver may be gone before its users, and with a
    /// broken context nothing can be freed; neither is a mistake of the destructor's caller.
    pub(super) fn released(&self, operation: &'static str, code: u32) {
        if code != 0 && code != code::DEINITIALIZED {
            let CuResult { code, name } = self.api().result(code);
            tracing::warn!(device = %self.id(), operation, code, name, "could not be released");
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id(), self.name())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: pairs with the retain in `open`; all objects of the context hold a `Device`, so none is left.
        unsafe { (self.driver.api.cuDevicePrimaryCtxRelease_v2)(self.handle) };
    }
}

/// Makes a context current on this thread; dropping it restores the previous one.
#[must_use = "the context is current only while the guard lives"]
pub struct ContextGuard<'a> {
    device: &'a Device,
    pushed: bool,
    /// The current context belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: `popped` is valid for a write; the context was pushed by `bind` on this thread.
            let code = unsafe { (self.device.api().cuCtxPopCurrent_v2)(&mut popped) };
            self.device.released("cuCtxPopCurrent", code);
        }
    }
}

impl Api {
    pub(super) fn check(
        &self,
        device: DeviceId,
        operation: &'static str,
        code: u32,
    ) -> Result<(), CudaError> {
        if code == 0 { Ok(()) } else { Err(CudaError::of_call(device, operation, self.result(code))) }
    }
}

fn handle_of(driver: &'static Driver, ordinal: u32) -> Result<CUdevice, CudaError> {
    let count = driver.device_count();
    if ordinal >= count {
        return Err(CudaError::NoSuchDevice { ordinal, count });
    }
    let mut handle = 0;
    // SAFETY: `handle` is valid for a write.
    let code = unsafe { (driver.api.cuDeviceGet)(&mut handle, ordinal as i32) };
    let id = DeviceId { ordinal, bus: PciBus::default() };
    driver.api.check(id, "cuDeviceGet", code).map(|()| handle)
}

/// The driver's facts about a device, available without a context.
struct Facts {
    driver: &'static Driver,
    handle: CUdevice,
    id: DeviceId,
}

impl Facts {
    fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: `value` is valid for a write; the driver refuses attributes that it does not know.
        let code =
            unsafe { (self.driver.api.cuDeviceGetAttribute)(&mut value, attribute as u32, self.handle) };
        self.driver.api.check(self.id, "cuDeviceGetAttribute", code).map(|()| value)
    }

    fn bus(&self) -> Result<PciBus, CudaError> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as BUS, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID as DEVICE,
            CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID as DOMAIN,
        };
        let (domain, bus, device) = (self.attribute(DOMAIN)?, self.attribute(BUS)?, self.attribute(DEVICE)?);
        Ok(PciBus { domain: domain as u32, bus: bus as u8, device: device as u8 })
    }

    fn sm(&self) -> Result<(u32, u32), CudaError> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT,
        };
        let sm = self.attribute(MAJOR)? * 10 + self.attribute(MINOR)?;
        Ok((sm as u32, self.attribute(COUNT)? as u32))
    }

    fn shared_max(&self) -> Result<u32, CudaError> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        Ok(self.attribute(attribute)? as u32)
    }

    fn name(&self) -> Result<String, CudaError> {
        let mut name = [0u8; 256];
        // SAFETY: `name` is valid for 255 bytes of writes, the last byte stays zero.
        let code = unsafe { (self.driver.api.cuDeviceGetName)(name.as_mut_ptr().cast(), 255, self.handle) };
        self.driver.api.check(self.id, "cuDeviceGetName", code)?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn uuid(&self) -> Result<[u8; 16], CudaError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is valid for a write.
        let code = unsafe { (self.driver.api.cuDeviceGetUuid_v2)(&mut uuid, self.handle) };
        self.driver.api.check(self.id, "cuDeviceGetUuid", code)?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    fn memory_bytes(&self) -> Result<usize, CudaError> {
        let mut bytes = 0;
        // SAFETY: `bytes` is valid for a write.
        let code = unsafe { (self.driver.api.cuDeviceTotalMem_v2)(&mut bytes, self.handle) };
        self.driver.api.check(self.id, "cuDeviceTotalMem", code).map(|()| bytes)
    }
}
