//! The receiving end.

use super::config::IbConfig;
use super::cts::{Cts, CtsTable};
use super::flush::Flusher;
use super::link::{Kind, Link};
use super::port::MESSAGE_MAX_BYTES;
use super::registry::{Registry, unknown};
use super::send::no_request;
use super::verbs::Region;
use super::verbs::abi::value::*;
use super::verbs::abi::{SendWr, Sge};
use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, REQUESTS_MAX, RecvComm, Registration, Request};
use std::ptr::null_mut;

/// One in so many CTS writes is signalled: their completions only free their requests.
const SIGNAL_EVERY: u64 = 16;
/// CTS writes whose requests may not be free yet: the capacity of the queue.
const CTS_MAX: u64 = 2 * REQUESTS_MAX as u64;
/// First index of flushes.
const FLUSH_BASE: u32 = REQUESTS_MAX as u32;

/// A posted receive.
#[derive(Clone, Copy, Default)]
struct Receiving {
    is_used: bool,
    /// Queue pairs whose part has not arrived.
    pending: u32,
    max_bytes: u32,
    len_bytes: u32,
}

/// A flush in flight.
#[derive(Clone, Copy, Default)]
struct Flushing {
    is_used: bool,
    is_done: bool,
    len_bytes: usize,
}

/// The receiving end of a connection.
pub(super) struct IbReceiver {
    // Drop order matters: queue pairs before the memory that they access.
    link: Link,
    flusher: Option<Flusher>,
    registry: Registry,
    table_region: Region,
    /// This side's copy of the entries written to the peer.
    table: Box<CtsTable>,
    config: IbConfig,
    remote: RemoteTable,
    split: bool,
    next: u64,
    next_flush: u64,
    cts_done: u64,
    receives: [Receiving; REQUESTS_MAX],
    flushes: [Flushing; REQUESTS_MAX],
}

/// The sender's CTS table.
#[derive(Clone, Copy)]
pub(super) struct RemoteTable {
    pub address: u64,
    pub key: u32,
}

impl IbReceiver {
    /// Creates the receiver. `table_region` is the registration of `table`.
    pub(super) fn new(
        link: Link,
        table: Box<CtsTable>,
        table_region: Region,
        remote: RemoteTable,
        split: bool,
        config: IbConfig,
    ) -> IbReceiver {
        IbReceiver {
            link,
            flusher: None,
            registry: Registry::default(),
            table_region,
            table,
            config,
            remote,
            split,
            next: 0,
            next_flush: 0,
            cts_done: 0,
            receives: [Receiving::default(); REQUESTS_MAX],
            flushes: [Flushing::default(); REQUESTS_MAX],
        }
    }

    /// Sends the CTS entry of message `self.next`.
    fn send_cts(&mut self, cts: &Cts) -> Result<(), NetError> {
        self.table.put(self.next, cts);
        let offset = CtsTable::offset_bytes(self.next);
        let mut sge = Sge {
            addr: (&raw const *self.table).addr() as u64 + offset as u64,
            length: size_of::<super::cts::Entry>() as u32,
            lkey: self.table_region.local_key(),
        };
        let signaled = if self.next % SIGNAL_EVERY == SIGNAL_EVERY - 1 { SEND_SIGNALED } else { 0 };
        let inline = if self.link.qps[0].inline_max_bytes() >= sge.length as usize { SEND_INLINE } else { 0 };
        let mut request = SendWr {
            wr_id: Kind::Cts.id(self.next as u32),
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
            opcode: WR_RDMA_WRITE,
            send_flags: signaled | inline,
            imm_data: 0,
            remote_addr: self.remote.address + offset as u64,
            rkey: self.remote.key,
            rest_of_unions: [0; 9],
        };
        // SAFETY: the scatter-gather entry outlives the call; the table entry is in registered memory and not written
        // until its message is done, which is after the sender has read it.
        unsafe { self.link.post(0, &mut request) }
    }

    fn poll(&mut self) -> Result<(), NetError> {
        let (receives, flushes, cts_done) = (&mut self.receives, &mut self.flushes, &mut self.cts_done);
        let mut too_long = None;
        self.link.poll(|kind, number, completion| match kind {
            Kind::Receive => {
                let receive = &mut receives[number as usize];
                receive.pending = receive.pending.saturating_sub(1);
                receive.len_bytes = u32::from_be(completion.imm_data);
                if receive.len_bytes > receive.max_bytes {
                    too_long = Some(*receive);
                }
            }
            // Of 2^32 indices at most 64 are in flight, so the distance from the last one is unambiguous.
            Kind::Cts => *cts_done += u64::from(number.wrapping_sub(*cts_done as u32)) + 1,
            Kind::Flush => flushes[number as usize].is_done = true,
            Kind::Data => {}
        })?;
        too_long.map_or(Ok(()), |receive: Receiving| {
            let expected = format!("a message of at most {} bytes", receive.max_bytes);
            Err(self.link.fail_protocol(expected, format!("one of {}", receive.len_bytes)))
        })
    }

    fn test_flush(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        let number = (request.0 - FLUSH_BASE) as usize;
        if !self.flushes.get(number).is_some_and(|flush| flush.is_used) {
            return Err(no_request(&self.link, request));
        }
        self.link.check()?;
        self.poll()?;
        let flush = &mut self.flushes[number];
        if !flush.is_done {
            return self.link.wait(true).map(|()| None);
        }
        flush.is_used = false;
        Ok(Some(flush.len_bytes))
    }
}

impl Comm for IbReceiver {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        // SAFETY: the caller's.
        let registration =
            unsafe { self.registry.add(&self.link.port, memory, self.config.relaxed_ordering)? };
        if !matches!(memory.kind, NetMemoryKind::Host) && self.flusher.is_none() {
            match Flusher::new(&self.link.port, &self.link.cq, &self.config) {
                Ok(flusher) => self.flusher = Some(flusher),
                Err(error) => {
                    // If the registration is refused, the caller may free the memory at once: remove it.
                    self.registry.remove(&self.link.port, registration)?;
                    return Err(error);
                }
            }
        }
        Ok(registration)
    }

    fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        self.registry.remove(&self.link.port, registration)
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        if request.0 >= FLUSH_BASE {
            return self.test_flush(request);
        }
        let number = request.0 as usize;
        if !self.receives[number].is_used {
            return Err(no_request(&self.link, request));
        }
        self.link.check()?;
        self.poll()?;
        let receive = &mut self.receives[number];
        if receive.pending > 0 {
            // A message in one piece shows nothing before it has arrived.
            let mid_message = self.split && (receive.pending as usize) < self.link.qps.len();
            return self.link.wait(mid_message).map(|()| None);
        }
        receive.is_used = false;
        Ok(Some(receive.len_bytes as usize))
    }
}

impl RecvComm for IbReceiver {
    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.link.check()?;
        let number = (self.next % REQUESTS_MAX as u64) as u32;
        if self.receives[number as usize].is_used {
            return Ok(None);
        }
        if self.next - self.cts_done >= CTS_MAX {
            self.poll()?;
            return self.link.wait(false).map(|()| None);
        }
        let Some(registered) = self.registry.get(registration) else {
            return Err(unknown(&self.link.port, registration));
        };
        let max_bytes = max_bytes.min(MESSAGE_MAX_BYTES as usize) as u32;
        let cts = Cts { address: start.addr() as u64, max_bytes, key: registered.region.remote_key() };
        let qps = self.link.qps.len();
        let (first, count) = if self.split { (0, qps) } else { ((self.next % qps as u64) as usize, 1) };
        // Post the receives first: the message may arrive as soon as the sender sees the CTS entry.
        for qp in first..first + count {
            self.link.post_recv(qp, Kind::Receive.id(number))?;
        }
        self.receives[number as usize] =
            Receiving { is_used: true, pending: count as u32, max_bytes, len_bytes: 0 };
        self.send_cts(&cts)?;
        self.next += 1;
        Ok(Some(Request(number)))
    }

    unsafe fn flush(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.link.check()?;
        let Some(registered) = self.registry.get(registration) else {
            return Err(unknown(&self.link.port, registration));
        };
        let Some(flusher) = self.flusher.as_mut().filter(|_| !registered.is_host && len_bytes > 0) else {
            return Ok(None);
        };
        let number = (self.next_flush % REQUESTS_MAX as u64) as usize;
        if self.flushes[number].is_used {
            let reason = format!("{REQUESTS_MAX} flushes are under way");
            return Err(NetError::of_call(&self.link.port.name(), "flush", reason));
        }
        let id = Kind::Flush.id(number as u32);
        let key = registered.region.remote_key();
        flusher
            .post(start.wrapping_add(len_bytes - 1), key, id)
            .map_err(|error| self.link.fail("ibv_post_send", &error))?;
        self.flushes[number] = Flushing { is_used: true, is_done: false, len_bytes };
        self.next_flush += 1;
        Ok(Some(Request(FLUSH_BASE + number as u32)))
    }
}
