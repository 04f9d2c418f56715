//! The sending end.

use super::config::IbConfig;
use super::cts::{Cts, CtsTable};
use super::link::{Kind, Link};
use super::port::MESSAGE_MAX_BYTES;
use super::registry::{Registry, unknown};
use super::verbs::Region;
use super::verbs::abi::value::*;
use super::verbs::abi::{SendWr, Sge};
use crate::net::{Comm, NetError, NetMemory, REQUESTS_MAX, Registration, Request, SendComm};
use std::ffi::c_uint;
use std::ops::Range;
use std::ptr::null_mut;

/// Pieces of a split message start at multiples of this, which keeps LL128 lines and cache lines whole.
const PIECE_ALIGN: usize = 128;

/// A message in flight.
#[derive(Clone, Copy, Default)]
struct Sending {
    is_used: bool,
    /// Queue pairs whose part has not been acknowledged.
    pending: u32,
    /// Requests on each queue pair.
    requests: u32,
    len_bytes: usize,
}

/// How messages are split over queue pairs and requests.
#[derive(Clone, Copy)]
pub(super) struct SplitPolicy {
    /// Whether to split each message over all queue pairs, instead of alternating by message.
    pub split: bool,
    /// Pieces of more bytes than this are posted as data and a separate immediate, because packets may overtake each
    /// other.
    pub separate_imm_bytes: usize,
    pub relaxed: bool,
}

impl SplitPolicy {
    pub(super) fn new(config: &IbConfig, is_ethernet: bool) -> SplitPolicy {
        let adaptive = config.adaptive_routing.unwrap_or(!is_ethernet);
        SplitPolicy {
            split: config.split_data,
            separate_imm_bytes: if adaptive { config.adaptive_threshold_bytes } else { usize::MAX },
            relaxed: config.relaxed_ordering,
        }
    }
}

/// The sending end of a connection.
pub(super) struct IbSender {
    // Drop order matters: queue pairs before the memory that they access.
    link: Link,
    registry: Registry,
    _table_region: Region,
    table: Box<CtsTable>,
    policy: SplitPolicy,
    next: u64,
    sends: [Sending; REQUESTS_MAX],
    /// Requests in each send queue.
    queued: Vec<u32>,
}

impl IbSender {
    /// Creates the sender. The peer knows the address of `table`, whose registration is `table_region`.
    pub(super) fn new(
        link: Link,
        table: Box<CtsTable>,
        table_region: Region,
        policy: SplitPolicy,
    ) -> IbSender {
        IbSender {
            queued: vec![0; link.qps.len()],
            sends: [Sending::default(); REQUESTS_MAX],
            link,
            registry: Registry::default(),
            _table_region: table_region,
            table,
            policy,
            next: 0,
        }
    }

    /// The queue pairs of message `self.next`.
    fn qps(&self) -> Range<usize> {
        let qps = self.link.qps.len();
        let turn = (self.next % qps as u64) as usize;
        if self.policy.split { 0..qps } else { turn..turn + 1 }
    }

    /// Polls acknowledgements.
    fn poll(&mut self) -> Result<(), NetError> {
        let (sends, queued) = (&mut self.sends, &mut self.queued);
        self.link.poll(|_, number, _| {
            let (number, qp) = (number as usize % REQUESTS_MAX, number as usize / REQUESTS_MAX);
            sends[number].pending -= 1;
            queued[qp] -= sends[number].requests;
        })
    }

    /// Posts message `self.next` to the address in `cts`; returns whether there was room for it.
    ///
    /// # Safety
    /// As [`SendComm::isend`].
    unsafe fn post(
        &mut self,
        cts: &Cts,
        start: *const u8,
        len_bytes: usize,
        local: Local,
    ) -> Result<bool, NetError> {
        let (qps, port) = (self.qps(), &self.link.port);
        let longest = pieces(len_bytes, qps.len()).next().map_or(0, |(from, to)| to - from);
        let parts = Parts::new(longest, port.request_max_bytes, self.policy.separate_imm_bytes);
        let room = port.send_requests();
        if self.queued[qps.clone()].iter().any(|queued| queued + parts.requests() > room) {
            return Ok(false);
        }
        let number = (self.next % REQUESTS_MAX as u64) as usize;
        let requests = parts.requests();
        self.sends[number] = Sending { is_used: true, pending: qps.len() as u32, requests, len_bytes };
        for (qp, (from, to)) in qps.clone().zip(pieces(len_bytes, qps.len())) {
            self.queued[qp] += requests;
            let piece = Piece {
                start: start.addr() as u64 + from as u64,
                remote: cts.address + from as u64,
                len_bytes: (to - from) as u32,
                key: cts.key,
                id: Kind::Data.id((number + qp * REQUESTS_MAX) as u32),
                message_bytes: len_bytes as u32,
                local,
            };
            // SAFETY: the bytes lie in registered memory and nobody writes them (the caller's).
            unsafe { piece.post(&mut self.link, qp, &parts)? };
        }
        Ok(true)
    }

    /// Fails because the message is too long for the receive: sends its length without data, so that both ends know
    /// why the connection broke.
    fn refuse(&mut self, cts: &Cts, len_bytes: usize) -> NetError {
        let qp = self.qps().start;
        let imm = Piece {
            start: 0,
            remote: cts.address,
            len_bytes: 0,
            key: cts.key,
            id: Kind::Data.id(0),
            message_bytes: len_bytes as u32,
            local: Local { key: 0, is_host: false },
        };
        // SAFETY: no memory is read. A failed post changes nothing: the connection ends here.
        let _ = unsafe { imm.post(&mut self.link, qp, &Parts::default()) };
        let expected = format!("room for a message of {len_bytes} bytes");
        self.link.fail_protocol(expected, format!("a receive of at most {} bytes", cts.max_bytes))
    }
}

/// Splits `len_bytes` into `count` ranges, of which the last ones may be empty.
fn pieces(len_bytes: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    let piece_bytes = len_bytes.div_ceil(count).next_multiple_of(PIECE_ALIGN);
    (0..count).map(move |i| ((i * piece_bytes).min(len_bytes), ((i + 1) * piece_bytes).min(len_bytes)))
}

/// The local memory of a piece.
#[derive(Clone, Copy)]
struct Local {
    key: u32,
    /// Only host memory can be inlined into a request.
    is_host: bool,
}

/// The requests of a piece. Pieces of one message may differ by less than an alignment; the longest counts.
#[derive(Clone, Copy, Default)]
struct Parts {
    request_max_bytes: u32,
    /// Requests with data but without immediate.
    data: u32,
    /// Whether the immediate comes without data.
    is_imm_separate: bool,
}

impl Parts {
    fn new(len_bytes: usize, request_max_bytes: u32, separate_imm_bytes: usize) -> Parts {
        let is_imm_separate = len_bytes > separate_imm_bytes;
        let with_data = (len_bytes as u32).div_ceil(request_max_bytes);
        let data = if is_imm_separate { with_data } else { with_data.saturating_sub(1) };
        Parts { request_max_bytes, data, is_imm_separate }
    }

    fn requests(&self) -> u32 {
        self.data + 1
    }
}

/// The part of a message that one queue pair carries.
struct Piece {
    start: u64,
    remote: u64,
    len_bytes: u32,
    key: u32,
    id: u64,
    message_bytes: u32,
    local: Local,
}

impl Piece {
    /// Posts first the data that cannot go with the immediate, then the immediate.
    ///
    /// # Safety
    /// As [`SendComm::isend`].
    unsafe fn post(&self, link: &mut Link, qp: usize, parts: &Parts) -> Result<(), NetError> {
        let mut at = 0;
        for _ in 0..parts.data {
            let end = self.len_bytes.min(at + parts.request_max_bytes);
            if end > at {
                // SAFETY: the caller's.
                unsafe { self.post_part(link, qp, at..end, WR_RDMA_WRITE, 0)? };
            }
            at = end;
        }
        let rest = if parts.is_imm_separate { self.len_bytes..self.len_bytes } else { at..self.len_bytes };
        // SAFETY: the caller's.
        unsafe { self.post_part(link, qp, rest, WR_RDMA_WRITE_WITH_IMM, SEND_SIGNALED) }
    }

    /// # Safety
    /// As [`SendComm::isend`].
    unsafe fn post_part(
        &self,
        link: &mut Link,
        qp: usize,
        part: Range<u32>,
        opcode: c_uint,
        flags: c_uint,
    ) -> Result<(), NetError> {
        let (length, from) = (part.end - part.start, u64::from(part.start));
        let inline = self.local.is_host && length > 0 && length as usize <= link.qps[qp].inline_max_bytes();
        let mut sge = Sge { addr: self.start + from, length, lkey: self.local.key };
        let mut request = SendWr {
            wr_id: self.id,
            next: null_mut(),
            sg_list: if length > 0 { &mut sge } else { null_mut() },
            num_sge: i32::from(length > 0),
            opcode,
            send_flags: flags | if inline { SEND_INLINE } else { 0 },
            imm_data: self.message_bytes.to_be(),
            remote_addr: self.remote + from,
            rkey: self.key,
            rest_of_unions: [0; 9],
        };
        // SAFETY: the scatter-gather entry outlives the call; the bytes are the caller's.
        unsafe { link.post(qp, &mut request) }
    }
}

impl Comm for IbSender {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        // SAFETY: the caller's.
        unsafe { self.registry.add(&self.link.port, memory, self.policy.relaxed) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        self.registry.remove(&self.link.port, registration)
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        let Some(&Sending { is_used: true, .. }) = self.sends.get(request.0 as usize) else {
            return Err(no_request(&self.link, request));
        };
        self.link.check()?;
        self.poll()?;
        let send = &mut self.sends[request.0 as usize];
        if send.pending > 0 {
            return self.link.wait(true).map(|()| None);
        }
        send.is_used = false;
        Ok(Some(send.len_bytes))
    }
}

/// The error for an unknown request number.
#[cold]
pub(super) fn no_request(link: &Link, request: Request) -> NetError {
    NetError::of_call(&link.port.name(), "test", format!("request {} is not under way", request.0))
}

impl SendComm for IbSender {
    unsafe fn isend(
        &mut self,
        start: *const u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.link.check()?;
        let number = (self.next % REQUESTS_MAX as u64) as usize;
        if self.sends[number].is_used {
            return Ok(None);
        }
        let Some(cts) = self.table.get(self.next) else {
            return self.link.wait(false).map(|()| None);
        };
        if len_bytes > MESSAGE_MAX_BYTES as usize {
            let reason = format!("{len_bytes} bytes are more than a message may have ({MESSAGE_MAX_BYTES})");
            return Err(NetError::of_call(&self.link.port.name(), "isend", reason));
        }
        if len_bytes > cts.max_bytes as usize {
            return Err(self.refuse(&cts, len_bytes));
        }
        let Some(registered) = self.registry.get(registration) else {
            return Err(unknown(&self.link.port, registration));
        };
        let local = Local { key: registered.region.local_key(), is_host: registered.is_host };
        // SAFETY: the caller's.
        if !unsafe { self.post(&cts, start, len_bytes, local)? } {
            self.poll()?;
            return self.link.wait(true).map(|()| None);
        }
        self.next += 1;
        Ok(Some(Request(number as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_a_message_once_and_in_order(len in 0usize..100_000, count in 1usize..128) {
            let mut end = 0;
            for (from, to) in pieces(len, count) {
                prop_assert_eq!(from, end);
                prop_assert!(from % PIECE_ALIGN == 0 || from == len);
                end = to;
            }
            prop_assert_eq!(end, len);
        }
    }

    #[test]
    fn the_notice_is_apart_where_packets_may_overtake_each_other() {
        let config = IbConfig { adaptive_threshold_bytes: 100, ..IbConfig::default() };
        assert_eq!(SplitPolicy::new(&config, false).separate_imm_bytes, 100);
        assert_eq!(SplitPolicy::new(&config, true).separate_imm_bytes, usize::MAX);
        let forced = IbConfig { adaptive_routing: Some(true), ..config };
        assert_eq!(SplitPolicy::new(&forced, true).separate_imm_bytes, 100);
    }

    #[test]
    fn long_messages_are_several_requests_and_the_last_brings_the_notice() {
        let parts = |len, max, apart| {
            let parts = Parts::new(len, max, apart);
            (parts.data, parts.is_imm_separate, parts.requests())
        };
        assert_eq!(parts(0, 100, usize::MAX), (0, false, 1));
        assert_eq!(parts(100, 100, usize::MAX), (0, false, 1));
        assert_eq!(parts(101, 100, usize::MAX), (1, false, 2));
        assert_eq!(parts(300, 100, usize::MAX), (2, false, 3));
        assert_eq!(parts(300, 100, 200), (3, true, 4));
        assert_eq!(parts(0, 100, 0), (0, false, 1));
        assert_eq!(parts(1, 100, 0), (1, true, 2));
    }
}
