//! A head's communicator.

use super::CollPlugin;
use super::calls::{Elements, Place};
use crate::net::coll::{CollComm, CollPart, Head, Reduction};
use crate::net::plugin::abi::Opaque;
use crate::net::plugin::connection::{Connection, Done, Owner};
use crate::net::{Comm, MemoryKinds, NetError, NetMemory, Registration, Request};
use core::ffi::c_int;
use std::sync::Arc;

/// A head among all.
pub struct PluginComm {
    // Before the plugin, which closes it.
    connection: Connection,
    plugin: Arc<CollPlugin>,
    head: Head,
    /// Bytes of an operation's buffer at most.
    max_bytes: usize,
}

impl PluginComm {
    /// `comm` is the plugin's, and this one's alone; `device`, in words with the head's number, reaches that memory.
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

    fn place(&self, part: CollPart) -> Result<Place, NetError> {
        Ok(Place { start: part.start.cast(), handle: self.connection.handle(part.registration)? })
    }

    /// The plugin's numbers for an operation whose larger buffer has as many times its elements as `times`.
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

    /// What plugins say of an operation's bytes is not looked at: NCCL does not, and so they say this and that.
    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        let done = self.connection.test(request)?;
        Ok(done.map(|Done { len_bytes, .. }| len_bytes))
    }
}

impl CollComm for PluginComm {
    unsafe fn iallreduce(
        &mut self,
        send: CollPart,
        recv: CollPart,
        what: Reduction,
    ) -> Result<Option<Request>, NetError> {
        self.connection.still_good()?;
        let (places, elements) = ([self.place(send)?, self.place(recv)?], self.elements(what, 1)?);
        self.connection.post("iallreduce", what.len_bytes(), |comm, request| {
            // SAFETY: the caller's promise.
            Some(unsafe { self.plugin.calls.iallreduce(comm, places, elements, request) })
        })
    }

    unsafe fn iallgather(
        &mut self,
        send: CollPart,
        recv: CollPart,
        head_bytes: usize,
    ) -> Result<Option<Request>, NetError> {
        self.connection.still_good()?;
        let (places, heads) = ([self.place(send)?, self.place(recv)?], self.head.count);
        self.check_length(head_bytes, heads)?;
        self.connection.post("iallgather", head_bytes * heads as usize, |comm, request| {
            // SAFETY: the caller's promise.
            unsafe { self.plugin.calls.iallgather(comm, places, head_bytes, heads, request) }
        })
    }

    unsafe fn ireduce_scatter(
        &mut self,
        send: CollPart,
        recv: CollPart,
        what: Reduction,
    ) -> Result<Option<Request>, NetError> {
        self.connection.still_good()?;
        let (places, heads) = ([self.place(send)?, self.place(recv)?], self.head.count);
        let block = (self.elements(what, heads)?, what.len_bytes());
        self.connection.post("ireducescatter", what.len_bytes(), |comm, request| {
            // SAFETY: the caller's promise.
            unsafe { self.plugin.calls.ireduce_scatter(comm, places, block, heads, request) }
        })
    }

    unsafe fn flush(&mut self, part: CollPart, len_bytes: usize) -> Result<Option<Request>, NetError> {
        self.connection.still_good()?;
        let place = self.place(part)?;
        let Some(flush) = self.plugin.calls.iflush else { return Ok(None) };
        self.connection.post_now("iflush", len_bytes, |comm, request| {
            // SAFETY: the caller's promise.
            Some(unsafe { flush(comm, place.start, len_bytes as c_int, place.handle, request) })
        })
    }
}
