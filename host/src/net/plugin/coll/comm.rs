//! A head's communicator.

use super::CollPlugin;
use super::calls::{Elements, PluginBuffer};
use crate::net::coll::{CollComm, CollPart, Head, Reduction, Started};
use crate::net::plugin::abi::Opaque;
use crate::net::plugin::connection::{Connection, Done, Owner};
use crate::net::{Comm, MemoryKinds, NetError, NetMemory, Registration, Request};
use core::ffi::c_int;
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

    /// Converts an operation whose larger buffer has `times` times its elements.
    fn elements(&self, what: Reduction, times: u32) -> Result<Elements, NetError> {
        self.check_length(what.len_bytes(), times)?;
        Ok(Elements { count: what.count, dtype: what.dtype as c_int, op: what.op as c_int })
    }

    fn check_length(&self, len_bytes: usize, times: u32) -> Result<(), NetError> {
        match len_bytes.checked_mul(times as usize) {
            Some(total) if total <= self.max_bytes => Ok(()),
            _ => Err(self.connection.misused("a buffer longer than the plugin can count")),
        }
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
        let (buffers, elements) = ([self.buffer(send)?, self.buffer(recv)?], self.elements(what, 1)?);
        self.connection.post("iallreduce", what.len_bytes(), |comm, request| {
            // SAFETY: the caller's promise.
            Some(unsafe { self.plugin.calls.iallreduce(comm, buffers, elements, request) })
        })
    }

    unsafe fn iallgather(&mut self, send: CollPart, recv: CollPart, head_bytes: usize) -> Started {
        self.connection.check_usable()?;
        let (buffers, heads) = ([self.buffer(send)?, self.buffer(recv)?], self.head.count);
        self.check_length(head_bytes, heads)?;
        self.connection.post("iallgather", head_bytes * heads as usize, |comm, request| {
            // SAFETY: the caller's promise.
            unsafe { self.plugin.calls.iallgather(comm, buffers, head_bytes, heads, request) }
        })
    }

    unsafe fn ireduce_scatter(&mut self, send: CollPart, recv: CollPart, what: Reduction) -> Started {
        self.connection.check_usable()?;
        let (buffers, heads) = ([self.buffer(send)?, self.buffer(recv)?], self.head.count);
        let block = (self.elements(what, heads)?, what.len_bytes());
        self.connection.post("ireducescatter", what.len_bytes(), |comm, request| {
            // SAFETY: the caller's promise.
            unsafe { self.plugin.calls.ireduce_scatter(comm, buffers, block, heads, request) }
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
