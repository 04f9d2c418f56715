//! An open device.

use super::abi::{Context, Device, DeviceAttr, Gid, Pd, PortAttr};
use super::events::{Events, Watcher};
use super::library::Verbs;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// An open device with its protection domain. It closes when the last object made from it is dropped.
pub struct OpenDevice {
    pub(super) verbs: &'static Verbs,
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    name: String,
    watcher: Option<Watcher>,
    events: Arc<Events>,
    /// The process that opened it.
    process: u32,
}

// SAFETY: libibverbs locks where it must: its functions may be called from any thread, as long as no thread uses an
// object that is being destroyed, which ownership here rules out.
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

impl OpenDevice {
    /// All devices of the host that can be opened, in the library's order.
    ///
    /// # Errors
    /// The list cannot be read: usually no RDMA module is loaded.
    pub fn all(verbs: &'static Verbs) -> io::Result<Vec<Arc<OpenDevice>>> {
        let mut count = 0;
        // SAFETY: `count` is valid for a write.
        let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let mut devices = Vec::new();
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let device = unsafe { *list.add(i) };
            // SAFETY: an entry of a list that is not yet freed.
            let (name, opened) = unsafe { (name_of(verbs, device), OpenDevice::open(verbs, device)) };
            match opened {
                Ok(device) => devices.push(Arc::new(device)),
                Err(error) => tracing::warn!(device = %name, %error, "an RDMA device cannot be opened"),
            }
        }
        // SAFETY: the list came from ibv_get_device_list; open devices do not need it.
        unsafe { (verbs.ibv_free_device_list)(list) };
        Ok(devices)
    }

    /// # Safety
    /// 1. `device` is an entry of a list that is not freed yet.
    unsafe fn open(verbs: &'static Verbs, device: *mut Device) -> io::Result<OpenDevice> {
        // SAFETY: obligation 1.
        let name = unsafe { name_of(verbs, device) };
        // SAFETY: obligation 1.
        let context = unsafe { (verbs.ibv_open_device)(device) };
        if context.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the context is open.
        let pd = unsafe { (verbs.ibv_alloc_pd)(context) };
        let error = io::Error::last_os_error();
        let events = Arc::new(Events::default());
        let process = std::process::id();
        let mut this = OpenDevice { verbs, context, pd, name, watcher: None, events, process };
        if pd.is_null() {
            return Err(error);
        }
        // SAFETY: the watcher ends, in `drop`, before the context is closed.
        this.watcher = Some(unsafe { Watcher::start(verbs, context, &this.name, &this.events) }?);
        Ok(this)
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this process opened it. A forked child has the same descriptors: destroying an object there would
    /// destroy it for the parent, and the thread that the drop waits for does not exist in the child.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Its asynchronous events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// # Errors
    /// The driver's error.
    pub fn attributes(&self) -> io::Result<DeviceAttr> {
        let mut attr = MaybeUninit::<DeviceAttr>::zeroed();
        // SAFETY: the context is open, and `attr` is valid for writes.
        status(unsafe { (self.verbs.ibv_query_device)(self.context, attr.as_mut_ptr()) })?;
        // SAFETY: all bytes are initialised, and any bytes are a valid value of this structure of numbers.
        Ok(unsafe { attr.assume_init() })
    }

    /// # Errors
    /// The driver's error.
    pub fn port(&self, port: u8) -> io::Result<PortAttr> {
        let mut attr = MaybeUninit::<PortAttr>::zeroed();
        // SAFETY: the context is open, and `attr` is valid for writes.
        status(unsafe { (self.verbs.ibv_query_port)(self.context, port, attr.as_mut_ptr()) })?;
        // SAFETY: as in `attributes`.
        Ok(unsafe { attr.assume_init() })
    }

    /// An entry of a port's GID table.
    ///
    /// # Errors
    /// The driver's error.
    pub fn gid(&self, port: u8, index: u8) -> io::Result<Gid> {
        let mut gid = Gid::default();
        // SAFETY: the context is open, and `gid` is valid for writes.
        status(unsafe { (self.verbs.ibv_query_gid)(self.context, port, index.into(), &mut gid) })?;
        Ok(gid)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        if !self.is_ours() {
            return std::mem::forget(self.watcher.take());
        }
        self.watcher = None;
        if !self.pd.is_null() {
            // SAFETY: allocated in `open`; the objects made from it keep this device alive, so none is left.
            unsafe { (self.verbs.ibv_dealloc_pd)(self.pd) };
        }
        // SAFETY: open since `open`; the watcher has ended and no object made from the context is left.
        unsafe { (self.verbs.ibv_close_device)(self.context) };
    }
}

impl std::fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenDevice({})", self.name)
    }
}

/// # Safety
/// 1. `device` is an entry of a list that is not freed yet.
unsafe fn name_of(verbs: &Verbs, device: *mut Device) -> String {
    // SAFETY: obligation 1.
    let name = unsafe { (verbs.ibv_get_device_name)(device) };
    // SAFETY: the name is part of the device, ends with a zero and lives as long.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Result of the library's functions: 0, an errno, or -1 with errno set.
pub(super) fn status(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}
