//! A plugin's connections.

use super::abi::{Close, Code, Opaque};
use super::{Plugin, log};
use crate::net::{
    Comm, Connector, Listener, MemoryKinds, NetError, NetHandle, NetMemory, NetMemoryKind, REQUESTS_MAX,
    RecvComm, Registration, Request, SendComm,
};
use core::ffi::c_int;
use core::ptr::null_mut;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Lengths are an `int` before version 9, and of flushes and of what `test` tells in all of them.
pub const MESSAGE_MAX_BYTES: usize = c_int::MAX as usize;

/// Who a plugin's connection leads to: its addresses are its own affair.
const OTHER_END: &str = "the other end";

/// Kinds of memory, `NCCL_PTR_*`.
const PTR_HOST: c_int = 1;
const PTR_CUDA: c_int = 2;

/// A listener of the plugin.
pub struct PluginListener {
    plugin: Arc<Plugin>,
    memory: MemoryKinds,
    listener: Opaque,
}

// SAFETY: see `Plugin`; one thread at a time uses it.
unsafe impl Send for PluginListener {}

impl PluginListener {
    /// `listener` is the plugin's, and this one's alone; its device reaches that memory.
    pub fn new(plugin: Arc<Plugin>, memory: MemoryKinds, listener: Opaque) -> PluginListener {
        PluginListener { plugin, memory, listener }
    }
}

impl Listener for PluginListener {
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let (mut comm, mut none) = (null_mut(), null_mut());
        log::begin();
        // SAFETY: the listener is live; no device communicator is asked for.
        let code = unsafe { (self.plugin.calls.accept)(self.listener, &mut comm, &mut none) };
        self.plugin.check("accept", code)?;
        if comm.is_null() {
            return Ok(None);
        }
        let close = self.plugin.calls.close_recv;
        Ok(Some(Box::new(PluginRecv(Connection::new(self.plugin.clone(), self.memory, comm, close)))))
    }
}

impl Drop for PluginListener {
    fn drop(&mut self) {
        // SAFETY: it is ours, and this is its last use.
        unsafe { (self.plugin.calls.close_listen)(self.listener) };
    }
}

/// A connection that is being made.
pub struct PluginConnector {
    plugin: Arc<Plugin>,
    device: c_int,
    memory: MemoryKinds,
    /// The plugin keeps its progress in here: it stays where it is, and is ours alone.
    handle: Box<NetHandle>,
    failed: Option<NetError>,
}

// SAFETY: see `Plugin`; one thread at a time uses it.
unsafe impl Send for PluginConnector {}

impl PluginConnector {
    /// To whoever made `handle`, from a device that reaches that memory.
    pub fn new(
        plugin: Arc<Plugin>,
        device: c_int,
        memory: MemoryKinds,
        handle: NetHandle,
    ) -> PluginConnector {
        PluginConnector { plugin, device, memory, handle: Box::new(handle), failed: None }
    }
}

impl Connector for PluginConnector {
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut comm = null_mut();
        log::begin();
        let Plugin { calls, context, .. } = &*self.plugin;
        // SAFETY: the context is the plugin's, which has the device.
        let code = unsafe { calls.connect(*context, self.device, &mut self.handle, &mut comm) };
        if let Err(error) = self.plugin.check("connect", code) {
            return Err(self.failed.insert(error).clone());
        }
        if comm.is_null() {
            return Ok(None);
        }
        let close = calls.close_send;
        Ok(Some(Box::new(PluginSend(Connection::new(self.plugin.clone(), self.memory, comm, close)))))
    }
}

/// What both ends have.
struct Connection {
    plugin: Arc<Plugin>,
    memory: MemoryKinds,
    comm: Opaque,
    close: Close,
    /// The plugin's handles of registered memory; null where one was deregistered.
    registered: Vec<Opaque>,
    under_way: heapless::Vec<Option<UnderWay>, REQUESTS_MAX>,
    failed: Option<NetError>,
}

#[derive(Clone, Copy)]
struct UnderWay {
    request: Opaque,
    len_bytes: usize,
}

// SAFETY: see `Plugin`; one thread at a time uses it.
unsafe impl Send for Connection {}

impl Connection {
    fn new(plugin: Arc<Plugin>, memory: MemoryKinds, comm: Opaque, close: Close) -> Connection {
        let under_way = (0..REQUESTS_MAX).map(|_| None).collect();
        Connection { plugin, memory, comm, close, registered: Vec::new(), under_way, failed: None }
    }

    /// The plugin's answer; a connection that has failed says the same for ever.
    fn check(&mut self, call: &'static str, code: Code) -> Result<(), NetError> {
        if code == 0 {
            return Ok(());
        }
        let (device, peer) = (self.plugin.calls.name.clone(), Some(OTHER_END.to_owned()));
        let error = NetError::Call { device, peer, call, reason: log::in_words(code) };
        Err(self.failed.insert(error).clone())
    }

    fn still_good(&self) -> Result<(), NetError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn handle(&self, registration: Registration) -> Result<Opaque, NetError> {
        let handle = self.registered.get(registration.0 as usize).copied();
        handle.filter(|handle| !handle.is_null()).ok_or_else(|| self.misused("memory that is not registered"))
    }

    fn misused(&self, what: &str) -> NetError {
        NetError::Call {
            device: self.plugin.calls.name.clone(),
            peer: None,
            call: "OxCCL",
            reason: format!("{what} was named"),
        }
    }

    fn free_slot(&self) -> Option<usize> {
        self.under_way.iter().position(Option::is_none)
    }

    /// A request that the plugin has accepted, if it has.
    fn note(&mut self, slot: usize, request: Opaque, len_bytes: usize) -> Option<Request> {
        if request.is_null() {
            return None;
        }
        self.under_way[slot] = Some(UnderWay { request, len_bytes });
        Some(Request(slot as u32))
    }

    /// # Safety
    /// As [`Comm::register`].
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        self.still_good()?;
        let (kind, what) = match memory.kind {
            NetMemoryKind::Host => (MemoryKinds::HOST, "memory of the process"),
            NetMemoryKind::Cuda => (MemoryKinds::CUDA, "memory of a GPU"),
            NetMemoryKind::DmaBuf { .. } => (MemoryKinds::DMA_BUF, "a dma-buf"),
        };
        let calls = &self.plugin.calls;
        let unsupported = || NetError::Unsupported { device: calls.name.clone(), what: what.to_owned() };
        if !self.memory.contains(kind) {
            return Err(unsupported());
        }
        let (comm, start, len) = (self.comm, memory.start, memory.len_bytes);
        let mut handle = null_mut();
        log::begin();
        // SAFETY: the memory is mapped, and its kind is what the caller says.
        let code = unsafe {
            match memory.kind {
                NetMemoryKind::Host => (calls.reg_mr)(comm, start, len, PTR_HOST, &mut handle),
                NetMemoryKind::Cuda => (calls.reg_mr)(comm, start, len, PTR_CUDA, &mut handle),
                NetMemoryKind::DmaBuf { fd, offset_bytes } => {
                    let register = calls.reg_mr_dma_buf.ok_or_else(unsupported)?;
                    register(comm, start, len, PTR_CUDA, offset_bytes, fd.as_raw_fd(), &mut handle)
                }
            }
        };
        // What cannot be registered leaves the connection as it was.
        self.plugin.check("regMr", code)?;
        // Plugins that need no handle may give none: ours stands for it.
        self.registered.push(if handle.is_null() { NO_HANDLE } else { handle });
        Ok(Registration(self.registered.len() as u32 - 1))
    }

    fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        let handle = self.handle(registration)?;
        self.registered[registration.0 as usize] = null_mut();
        log::begin();
        // SAFETY: the plugin gave it, and no request uses it any more.
        let code = unsafe { (self.plugin.calls.dereg_mr)(self.comm, given(handle)) };
        self.plugin.check("deregMr", code)
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        self.still_good()?;
        let slot = request.0 as usize;
        let Some(UnderWay { request, len_bytes }) = self.under_way.get(slot).copied().flatten() else {
            return Err(self.misused("a request that is not under way"));
        };
        let (mut done, mut len) = (0, len_bytes as c_int);
        log::begin();
        // SAFETY: the request is under way.
        let code = unsafe { (self.plugin.calls.test)(request, &mut done, &mut len) };
        self.check("test", code)?;
        if done == 0 {
            return Ok(None);
        }
        self.under_way[slot] = None;
        if len < 0 || len as usize > len_bytes {
            let found = format!("{len} bytes");
            let (device, peer) = (self.plugin.calls.name.clone(), OTHER_END.to_owned());
            let expected = format!("at most {len_bytes}");
            return Err(self.failed.insert(NetError::Protocol { device, peer, expected, found }).clone());
        }
        Ok(Some(len as usize))
    }
}

/// Stands for a plugin's null handle, which is a valid one.
const NO_HANDLE: Opaque = core::ptr::without_provenance_mut(usize::MAX);

/// The handle as the plugin gave it.
fn given(handle: Opaque) -> Opaque {
    if handle == NO_HANDLE { null_mut() } else { handle }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for handle in self.registered.drain(..).filter(|handle| !handle.is_null()) {
            // SAFETY: the plugin gave it; requests that use it end with the connection.
            unsafe { (self.plugin.calls.dereg_mr)(self.comm, given(handle)) };
        }
        // SAFETY: it is ours, and this is its last use.
        unsafe { (self.close)(self.comm) };
    }
}

/// The sending end.
struct PluginSend(Connection);

/// The receiving end.
struct PluginRecv(Connection);

macro_rules! comm {
    ($($end:ident),*) => { $(
        impl Comm for $end {
            unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
                // SAFETY: the same obligation.
                unsafe { self.0.register(memory) }
            }

            fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
                self.0.deregister(registration)
            }

            fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
                self.0.test(request)
            }
        }
    )* };
}
comm!(PluginSend, PluginRecv);

impl SendComm for PluginSend {
    unsafe fn isend(
        &mut self,
        start: *const u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.0.still_good()?;
        let handle = self.0.handle(registration)?;
        if len_bytes > MESSAGE_MAX_BYTES {
            return Err(self.0.misused("a message of more than 2 GiB"));
        }
        let Some(slot) = self.0.free_slot() else { return Ok(None) };
        let mut request = null_mut();
        log::begin();
        let calls = &self.0.plugin.calls;
        // SAFETY: the caller's promise.
        let code = unsafe {
            calls.isend(self.0.comm, start.cast_mut().cast(), len_bytes, given(handle), &mut request)
        };
        self.0.check("isend", code)?;
        Ok(self.0.note(slot, request, len_bytes))
    }
}

impl RecvComm for PluginRecv {
    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.0.still_good()?;
        let handle = self.0.handle(registration)?;
        let Some(slot) = self.0.free_slot() else { return Ok(None) };
        let mut request = null_mut();
        log::begin();
        let max_bytes = max_bytes.min(MESSAGE_MAX_BYTES);
        let calls = &self.0.plugin.calls;
        // SAFETY: the caller's promise.
        let code = unsafe { calls.irecv(self.0.comm, start.cast(), max_bytes, given(handle), &mut request) };
        self.0.check("irecv", code)?;
        Ok(self.0.note(slot, request, max_bytes))
    }

    unsafe fn flush(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.0.still_good()?;
        let mut handle = given(self.0.handle(registration)?);
        let Some(flush) = self.0.plugin.calls.iflush else { return Ok(None) };
        let Some(slot) = self.0.free_slot() else { return Err(self.0.misused("one request too many")) };
        let (mut request, mut data, mut len) = (null_mut(), start.cast(), len_bytes as c_int);
        log::begin();
        // SAFETY: the caller's promise; lists of one.
        let code = unsafe { flush(self.0.comm, 1, &mut data, &mut len, &mut handle, &mut request) };
        self.0.check("iflush", code)?;
        Ok(self.0.note(slot, request, len_bytes))
    }
}
