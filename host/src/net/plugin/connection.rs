//! The common part of a plugin's communicators: memory, requests, and the first error.

use super::abi::{Close, Code, DeregMr, Opaque, RegMr, RegMrDmaBuf, Test};
use super::log;
use crate::net::{MemoryKinds, NetError, NetMemory, NetMemoryKind, REQUESTS_MAX, Registration, Request};
use core::ffi::c_int;
use core::ptr::null_mut;
use std::os::fd::AsRawFd;

/// Kinds of memory, `NCCL_PTR_*`.
const PTR_HOST: c_int = 1;
const PTR_CUDA: c_int = 2;

/// The communicator functions whose types all tables share.
#[derive(Clone, Copy)]
pub struct CommCalls {
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub test: Test,
    pub close: Close,
}

/// Description of a communicator.
pub struct Owner {
    /// This end's device, for errors.
    pub device: String,
    /// The other end, if there is one.
    pub peer: Option<String>,
    /// Kinds of memory that the device can access.
    pub memory: MemoryKinds,
}

/// A plugin's communicator. Dropping it closes it, before its owner drops the plugin.
pub struct Connection {
    calls: CommCalls,
    owner: Owner,
    comm: Opaque,
    /// The plugin's handles of registered memory; null for a deregistered one.
    registered: Vec<Opaque>,
    under_way: heapless::Vec<Option<UnderWay>, REQUESTS_MAX>,
    failed: Option<NetError>,
}

#[derive(Clone, Copy)]
struct UnderWay {
    request: Opaque,
    len_bytes: usize,
}

/// A completed request.
pub struct Done {
    /// Bytes requested.
    pub len_bytes: usize,
    /// Bytes moved, according to the plugin.
    pub reported_bytes: c_int,
}

// SAFETY: see `Plugin`; one thread at a time uses it.
unsafe impl Send for Connection {}

impl Connection {
    /// Takes ownership of the plugin's `comm`, to which `calls` apply.
    pub fn new(calls: CommCalls, owner: Owner, comm: Opaque) -> Connection {
        let under_way = (0..REQUESTS_MAX).map(|_| None).collect();
        Connection { calls, owner, comm, registered: Vec::new(), under_way, failed: None }
    }

    /// Converts the plugin's return code; the first failure is permanent.
    fn check(&mut self, call: &'static str, code: Code) -> Result<(), NetError> {
        if code == 0 {
            return Ok(());
        }
        let Owner { device, peer, .. } = &self.owner;
        let (device, peer) = (device.clone(), peer.clone());
        Err(self.break_by(NetError::Call { device, peer, call, reason: log::describe(code) }))
    }

    /// Breaks the communicator: every later call returns this error.
    pub fn break_by(&mut self, error: NetError) -> NetError {
        self.failed.insert(error).clone()
    }

    /// # Errors
    /// The communicator's first error, if it is broken.
    pub fn check_usable(&self) -> Result<(), NetError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// The error for a caller's mistake, which breaks nothing.
    pub fn misused(&self, what: &str) -> NetError {
        NetError::of_call(&self.owner.device, "OxCCL", format!("{what} was named"))
    }

    /// This end's device.
    pub fn device(&self) -> &str {
        &self.owner.device
    }

    /// The error for a missing feature of the device.
    fn unsupported(&self, what: &str) -> NetError {
        NetError::Unsupported { device: self.owner.device.clone(), what: what.to_owned() }
    }

    /// The plugin's handle of registered memory.
    pub fn handle(&self, registration: Registration) -> Result<Opaque, NetError> {
        let handle = self.registered.get(registration.0 as usize).copied();
        let handle = handle.filter(|handle| !handle.is_null());
        handle.map(given).ok_or_else(|| self.misused("memory that is not registered"))
    }

    /// A free request slot, if another request may be in flight.
    fn free_slot(&self) -> Option<usize> {
        self.under_way.iter().position(Option::is_none)
    }

    /// Starts a request of `len_bytes`, if there is room for one. `begin` passes the plugin its communicator and a
    /// place for the request; it returns `None` where the plugin has no such function.
    pub fn post(
        &mut self,
        call: &'static str,
        len_bytes: usize,
        begin: impl FnOnce(Opaque, &mut Opaque) -> Option<Code>,
    ) -> Result<Option<Request>, NetError> {
        let Some(slot) = self.free_slot() else { return Ok(None) };
        let mut request = null_mut();
        log::begin();
        let code = begin(self.comm, &mut request).ok_or_else(|| self.unsupported(call))?;
        self.check(call, code)?;
        Ok(self.record(slot, request, len_bytes))
    }

    /// The same for a request that cannot wait for room.
    pub fn post_now(
        &mut self,
        call: &'static str,
        len_bytes: usize,
        begin: impl FnOnce(Opaque, &mut Opaque) -> Option<Code>,
    ) -> Result<Option<Request>, NetError> {
        if self.free_slot().is_none() {
            return Err(self.misused("one request too many"));
        }
        self.post(call, len_bytes, begin)
    }

    /// Records a request, if the plugin has accepted it.
    fn record(&mut self, slot: usize, request: Opaque, len_bytes: usize) -> Option<Request> {
        if request.is_null() {
            return None;
        }
        self.under_way[slot] = Some(UnderWay { request, len_bytes });
        Some(Request(slot as u32))
    }

    /// # Safety
    /// As [`crate::net::Comm::register`].
    pub unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        self.check_usable()?;
        let (kind, what) = match memory.kind {
            NetMemoryKind::Host => (MemoryKinds::HOST, "memory of the process"),
            NetMemoryKind::Cuda => (MemoryKinds::CUDA, "memory of a GPU"),
            NetMemoryKind::DmaBuf { .. } => (MemoryKinds::DMA_BUF, "a dma-buf"),
        };
        if !self.owner.memory.contains(kind) {
            return Err(self.unsupported(what));
        }
        let (comm, start, len) = (self.comm, memory.start, memory.len_bytes);
        let mut handle = null_mut();
        log::begin();
        // SAFETY: the memory is mapped, and its kind is the caller's promise.
        let code = unsafe {
            match memory.kind {
                NetMemoryKind::Host => (self.calls.reg_mr)(comm, start, len, PTR_HOST, &mut handle),
                NetMemoryKind::Cuda => (self.calls.reg_mr)(comm, start, len, PTR_CUDA, &mut handle),
                NetMemoryKind::DmaBuf { fd, offset_bytes } => {
                    let register = self.calls.reg_mr_dma_buf.ok_or_else(|| self.unsupported(what))?;
                    register(comm, start, len, PTR_CUDA, offset_bytes, fd.as_raw_fd(), &mut handle)
                }
            }
        };
        // A failed registration leaves the connection as it was.
        if code != 0 {
            return Err(NetError::of_call(&self.owner.device, "regMr", log::describe(code)));
        }
        // Plugins that need no handle may return null: store our own value for it.
        self.registered.push(if handle.is_null() { NO_HANDLE } else { handle });
        Ok(Registration(self.registered.len() as u32 - 1))
    }

    /// Undoes [`Self::register`].
    pub fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        let handle = self.handle(registration)?;
        self.registered[registration.0 as usize] = null_mut();
        log::begin();
        // SAFETY: the plugin created it, and no request uses it any more.
        let code = unsafe { (self.calls.dereg_mr)(self.comm, handle) };
        if code == 0 {
            return Ok(());
        }
        Err(NetError::of_call(&self.owner.device, "deregMr", log::describe(code)))
    }

    /// Tests a request.
    pub fn test(&mut self, request: Request) -> Result<Option<Done>, NetError> {
        self.check_usable()?;
        let slot = request.0 as usize;
        let Some(UnderWay { request, len_bytes }) = self.under_way.get(slot).copied().flatten() else {
            return Err(self.misused("a request that is not under way"));
        };
        let (mut done, mut reported_bytes) = (0, len_bytes as c_int);
        log::begin();
        // SAFETY: the request is in flight.
        let code = unsafe { (self.calls.test)(request, &mut done, &mut reported_bytes) };
        self.check("test", code)?;
        if done == 0 {
            return Ok(None);
        }
        self.under_way[slot] = None;
        Ok(Some(Done { len_bytes, reported_bytes }))
    }
}

/// Represents a plugin's null handle, which is a valid one.
const NO_HANDLE: Opaque = core::ptr::without_provenance_mut(usize::MAX);

/// The handle as the plugin returned it.
fn given(handle: Opaque) -> Opaque {
    if handle == NO_HANDLE { null_mut() } else { handle }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for handle in self.registered.drain(..).filter(|handle| !handle.is_null()) {
            // SAFETY: the plugin created it; requests that use it end with the connection.
            unsafe { (self.calls.dereg_mr)(self.comm, given(handle)) };
        }
        // SAFETY: it is ours, and this is its last use.
        unsafe { (self.calls.close)(self.comm) };
    }
}
