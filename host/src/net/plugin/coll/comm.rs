//! A head's communicator.

use super::calls::{CollPlugin, Elements, PluginBuffer};
use crate::net::coll::{CollComm, CollPart, Head, Reduction, Started, Window};
use crate::net::plugin::abi::Opaque;
use crate::net::plugin::connection::{Connection, Done, Owner};
use crate::net::{Comm, MemoryKinds, NetError, NetMemory, Registration, Request};
use core::ffi::c_int;
use oxccl_shared::abi::{DataType, RedOp};
use std::sync::Arc;

/// One head's end of a communicator.
pub struct PluginComm {
    // Dropped before the plugin, which closes it.
    connection: Connection,
    plugin: Arc<CollPlugin>,
    head: Head,
    /// Most bytes of an operation's buffer.
    max_bytes: usize,
}

impl PluginComm {
    /// Takes ownership of the plugin's `comm`. `device` names the device and the head for errors; `memory` is what it
    /// can access.
    pub fn new(
        plugin: Arc<CollPlugin>,
        comm: Opaque,
        device: String,
        memory: MemoryKinds,
        head: Head,
    ) -> PluginComm {
        let owner = Owner { device, peer: Some("the other heads".to_owned()), memory };
        let max_bytes = if plugin.calls.counts_by_int() { c_int::MAX as usize } else { usize::MAX };
        PluginComm { connection: Connection::new(plugin.calls.comm, owner, comm), plugin, head, max_bytes }
    }

    fn buffer(&self, part: CollPart) -> Result<PluginBuffer, NetError> {
        Ok(PluginBuffer { start: part.start.cast(), handle: self.connection.handle(part.registration)? })
    }

    /// # Errors
    /// The plugin cannot count so many bytes.
    fn check_length(&self, len_bytes: usize) -> Result<(), NetError> {
        if len_bytes <= self.max_bytes {
            return Ok(());
        }
        Err(self.connection.misused("a buffer longer than the plugin can count"))
    }

    fn check_window(&self, window: Window) -> Result<(), NetError> {
        self.check_length(window.len_bytes)?;
        if window.is_inside(self.head.count) {
            return Ok(());
        }
        Err(self.connection.misused("a window that is not within all heads' blocks"))
    }
}

impl Comm for PluginComm {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        // SAFETY: the same obligation.
        unsafe { self.connection.register(memory) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        self.connection.deregister(registration)
    }

    /// Ignores the byte count that the plugin reports: NCCL ignores it too, so plugins report various values.
    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        let done = self.connection.test(request)?;
        Ok(done.map(|Done { len_bytes, .. }| len_bytes))
    }
}

impl CollComm for PluginComm {
    unsafe fn iallreduce(&mut self, send: CollPart, recv: CollPart, what: Reduction) -> Started {
        self.connection.check_usable()?;
        let buffers = [self.buffer(send)?, self.buffer(recv)?];
        self.check_length(what.len_bytes())?;
        let elements = Elements { count: what.count, dtype: what.dtype as c_int, op: what.op as c_int };
        self.connection.post("iallreduce", what.len_bytes(), |comm, request| {
            // SAFETY: the caller's promise.
            Some(unsafe { self.plugin.calls.iallreduce(comm, buffers, elements, request) })
        })
    }

    unsafe fn iallgather(&mut self, send: CollPart, recv: CollPart, window: Window) -> Started {
        self.connection.check_usable()?;
        let buffers = [self.buffer(send)?, self.buffer(recv)?];
        self.check_window(window)?;
        self.connection.post("iallgather", window.len_bytes, |comm, request| {
            // SAFETY: the caller's promise.
            unsafe { self.plugin.calls.iallgather(comm, buffers, window, request) }
        })
    }

    unsafe fn ireduce_scatter(
        &mut self,
        send: CollPart,
        recv: CollPart,
        (dtype, op): (DataType, RedOp),
        window: Window,
    ) -> Started {
        self.connection.check_usable()?;
        let buffers = [self.buffer(send)?, self.buffer(recv)?];
        self.check_window(window)?;
        let (element, share) = ((dtype as c_int, op as c_int), window.share(self.head.index));
        self.connection.post("ireducescatter", share.len(), |comm, request| {
            // SAFETY: the caller's promise.
            unsafe { self.plugin.calls.ireduce_scatter(comm, buffers, element, window, request) }
        })
    }

    unsafe fn flush(&mut self, part: CollPart, len_bytes: usize) -> Started {
        self.connection.check_usable()?;
        let buffer = self.buffer(part)?;
        let Some(flush) = self.plugin.calls.iflush else { return Ok(None) };
        self.connection.post_now("iflush", len_bytes, |comm, request| {
            // SAFETY: the caller's promise.
            Some(unsafe { flush(comm, buffer.start, len_bytes as c_int, buffer.handle, request) })
        })
    }

    fn awaited(&self) -> String {
        self.connection.device().to_owned()
    }
}
