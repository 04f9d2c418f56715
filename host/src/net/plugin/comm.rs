//! A plugin's connections.

use super::abi::{Close, Opaque};
use super::calls::Calls;
use super::connection::{CommCalls, Connection, Done, Owner};
use super::log;
use super::opened::Plugin;
use crate::net::{
    Comm, Connector, Listener, MemoryKinds, NetError, NetHandle, NetMemory, RecvComm, Registration, Request,
    SendComm,
};
use core::ffi::c_int;
use core::ptr::null_mut;
use std::sync::Arc;

/// Lengths are an `int` before version 9; those of flushes and of `test` in all versions.
pub const MESSAGE_MAX_BYTES: usize = c_int::MAX as usize;

/// Name of the peer in errors: plugins do not disclose addresses.
const OTHER_END: &str = "the other end";

/// A listener of the plugin.
pub struct PluginListener {
    plugin: Arc<Plugin>,
    memory: MemoryKinds,
    listener: Opaque,
}

// SAFETY: see `Plugin`; one thread at a time uses it.
unsafe impl Send for PluginListener {}

impl PluginListener {
    /// Takes ownership of the plugin's `listener`; its device can access `memory`.
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
        // Data received into a GPU's memory may need a flush. A plugin without one must not be asked to receive
        // there.
        let flushes = self.plugin.calls.iflush.is_some();
        let memory = if flushes { self.memory } else { self.memory & MemoryKinds::HOST };
        let made = connection(&self.plugin, memory, comm, self.plugin.calls.close_recv);
        Ok(Some(Box::new(PluginRecv(made, self.plugin.clone()))))
    }
}

impl Drop for PluginListener {
    fn drop(&mut self) {
        // SAFETY: it is ours, and this is its last use.
        unsafe { (self.plugin.calls.close_listen)(self.listener) };
    }
}

/// A connection being set up.
pub struct PluginConnector {
    plugin: Arc<Plugin>,
    device: c_int,
    memory: MemoryKinds,
    /// The plugin keeps its progress in here: it must not move, and is ours alone.
    handle: Box<NetHandle>,
    failed: Option<NetError>,
}

// SAFETY: see `Plugin`; one thread at a time uses it.
unsafe impl Send for PluginConnector {}

impl PluginConnector {
    /// Connects to the listener of `handle`, from a device that can access `memory`.
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
        let made = connection(&self.plugin, self.memory, comm, calls.close_send);
        Ok(Some(Box::new(PluginSend(made, self.plugin.clone()))))
    }
}

/// A connection of the plugin, closed by `close`.
fn connection(plugin: &Arc<Plugin>, memory: MemoryKinds, comm: Opaque, close: Close) -> Connection {
    let Calls { reg_mr, reg_mr_dma_buf, dereg_mr, test, .. } = plugin.calls;
    let device = plugin.name().to_owned();
    let owner = Owner { device, peer: Some(OTHER_END.to_owned()), memory };
    Connection::new(CommCalls { reg_mr, reg_mr_dma_buf, dereg_mr, test, close }, owner, comm)
}

/// The sending end.
struct PluginSend(Connection, Arc<Plugin>);

/// The receiving end.
struct PluginRecv(Connection, Arc<Plugin>);

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
                let Some(Done { len_bytes, reported_bytes }) = self.0.test(request)? else { return Ok(None) };
                if reported_bytes < 0 || reported_bytes as usize > len_bytes {
                    return Err(self.0.break_by(NetError::Protocol {
                        device: self.1.name().to_owned(),
                        peer: OTHER_END.to_owned(),
                        expected: format!("at most {len_bytes}"),
                        found: format!("{reported_bytes} bytes"),
                    }));
                }
                Ok(Some(reported_bytes as usize))
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
        self.0.check_usable()?;
        let handle = self.0.handle(registration)?;
        if len_bytes > MESSAGE_MAX_BYTES {
            return Err(self.0.misused("a message of more than 2 GiB"));
        }
        let data = start.cast_mut().cast();
        self.0.post("isend", len_bytes, |comm, request| {
            // SAFETY: the caller's promise.
            Some(unsafe { self.1.calls.isend(comm, data, len_bytes, handle, request) })
        })
    }
}

impl RecvComm for PluginRecv {
    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.0.check_usable()?;
        let handle = self.0.handle(registration)?;
        let max_bytes = max_bytes.min(MESSAGE_MAX_BYTES);
        self.0.post("irecv", max_bytes, |comm, request| {
            // SAFETY: the caller's promise.
            Some(unsafe { self.1.calls.irecv(comm, start.cast(), max_bytes, handle, request) })
        })
    }

    unsafe fn flush(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.0.check_usable()?;
        let mut handle = self.0.handle(registration)?;
        let Some(flush) = self.1.calls.iflush else { return Ok(None) };
        let (mut data, mut len) = (start.cast(), len_bytes as c_int);
        self.0.post_now("iflush", len_bytes, |comm, request| {
            // SAFETY: the caller's promise; lists of one.
            Some(unsafe { flush(comm, 1, &mut data, &mut len, &mut handle, request) })
        })
    }
}
