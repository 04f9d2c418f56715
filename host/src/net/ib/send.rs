//! The sending end.

use super::config::IbConfig;
use super::link::{Kind, Link};
use super::offer::{Offer, Table};
use super::registry::{Registry, unknown};
use super::verbs::Region;
use super::verbs::abi::value::*;
use super::verbs::abi::{SendWr, Sge};
use crate::net::{Comm, NetError, NetMemory, REQUESTS_MAX, Registration, Request, SendComm};
use std::ptr::null_mut;

/// Pieces of a split message begin at multiples of this: LL128's lines stay whole, and so do those of the caches.
const PIECE_ALIGN: usize = 128;

/// A message under way.
#[derive(Clone, Copy, Default)]
struct Sending {
    is_used: bool,
    /// Requests that have not completed.
    pending: u32,
    len_bytes: usize,
}

/// How messages are cut and posted.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Each message goes over all lanes, instead of messages in turn.
    pub split: bool,
    /// Pieces of more bytes than this are posted as data and notice, because packets may overtake each other.
    pub notice_apart_bytes: usize,
    pub relaxed: bool,
}

impl Cut {
    pub(super) fn new(config: &IbConfig, is_ethernet: bool) -> Cut {
        let adaptive = config.adaptive_routing.unwrap_or(!is_ethernet);
        Cut {
            split: config.split_data,
            notice_apart_bytes: if adaptive { config.adaptive_threshold_bytes } else { usize::MAX },
            relaxed: config.relaxed_ordering,
        }
    }
}

/// The sending end of a connection.
pub(super) struct IbSender {
    // Dropped in this order: queue pairs before the memory that they touch.
    link: Link,
    registry: Registry,
    _table_region: Region,
    table: Box<Table>,
    cut: Cut,
    next: u64,
    sends: [Sending; REQUESTS_MAX],
}

impl IbSender {
    /// The peer knows of `table`, which `table_region` is.
    pub(super) fn new(link: Link, table: Box<Table>, table_region: Region, cut: Cut) -> IbSender {
        let sends = [Sending::default(); REQUESTS_MAX];
        IbSender {
            link,
            registry: Registry::default(),
            _table_region: table_region,
            table,
            cut,
            next: 0,
            sends,
        }
    }

    /// Posts message `self.next` to the place of `offer`.
    ///
    /// # Safety
    /// As [`SendComm::isend`].
    unsafe fn post(
        &mut self,
        offer: &Offer,
        start: *const u8,
        len_bytes: usize,
        local: (u32, bool),
    ) -> Result<(), NetError> {
        let lanes = self.link.qps.len();
        let (first, count) =
            if self.cut.split { (0, lanes) } else { ((self.next % lanes as u64) as usize, 1) };
        let number = (self.next % REQUESTS_MAX as u64) as u32;
        self.sends[number as usize] = Sending { is_used: true, pending: count as u32, len_bytes };
        for (i, (from, to)) in pieces(len_bytes, count).enumerate() {
            let piece = Piece {
                sge: Sge {
                    addr: start.addr() as u64 + from as u64,
                    length: (to - from) as u32,
                    lkey: local.0,
                },
                remote_addr: offer.address + from as u64,
                key: offer.key,
                id: Kind::Data.id(number),
                message_bytes: len_bytes as u32,
                is_host: local.1,
            };
            // SAFETY: the bytes lie in registered memory and nobody writes them (the caller's).
            unsafe { piece.post(&mut self.link, first + i, self.cut.notice_apart_bytes)? };
        }
        Ok(())
    }
}

/// `len_bytes` cut into `count` ranges, the last ones perhaps empty.
fn pieces(len_bytes: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    let piece_bytes = len_bytes.div_ceil(count).next_multiple_of(PIECE_ALIGN);
    (0..count).map(move |i| ((i * piece_bytes).min(len_bytes), ((i + 1) * piece_bytes).min(len_bytes)))
}

/// What one lane carries of a message.
struct Piece {
    sge: Sge,
    remote_addr: u64,
    key: u32,
    id: u64,
    message_bytes: u32,
    is_host: bool,
}

impl Piece {
    /// # Safety
    /// As [`SendComm::isend`].
    unsafe fn post(
        mut self,
        link: &mut Link,
        lane: usize,
        notice_apart_bytes: usize,
    ) -> Result<(), NetError> {
        let len = self.sge.length as usize;
        let apart = len > notice_apart_bytes;
        // Only this process's memory can be copied by this process.
        let inline = self.is_host && len <= link.qps[lane].inline_max_bytes();
        let data_in_notice = len > 0 && !apart;
        let mut notice = SendWr {
            wr_id: self.id,
            next: null_mut(),
            sg_list: if data_in_notice { &mut self.sge } else { null_mut() },
            num_sge: i32::from(data_in_notice),
            opcode: WR_RDMA_WRITE_WITH_IMM,
            send_flags: SEND_SIGNALED | if data_in_notice && inline { SEND_INLINE } else { 0 },
            imm_data: self.message_bytes.to_be(),
            remote_addr: self.remote_addr,
            rkey: self.key,
            rest_of_unions: [0; 9],
        };
        if !apart {
            // SAFETY: the piece outlives the call; the bytes are the caller's.
            return unsafe { link.post(lane, &mut notice) };
        }
        let mut data = SendWr {
            wr_id: self.id,
            next: &mut notice,
            sg_list: &mut self.sge,
            num_sge: 1,
            opcode: WR_RDMA_WRITE,
            send_flags: 0,
            imm_data: 0,
            remote_addr: self.remote_addr,
            rkey: self.key,
            rest_of_unions: [0; 9],
        };
        // SAFETY: as above; both requests outlive the call.
        unsafe { link.post(lane, &mut data) }
    }
}

impl Comm for IbSender {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        // SAFETY: the caller's.
        unsafe { self.registry.add(&self.link.port, memory, self.cut.relaxed) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        self.registry.remove(&self.link.port, registration)
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        let Some(&Sending { is_used: true, .. }) = self.sends.get(request.0 as usize) else {
            return Err(no_request(&self.link, request));
        };
        self.link.check()?;
        let sends = &mut self.sends;
        self.link.poll(|_, number, _| sends[number as usize].pending -= 1)?;
        let send = &mut self.sends[request.0 as usize];
        if send.pending > 0 {
            return self.link.wait(true).map(|()| None);
        }
        send.is_used = false;
        Ok(Some(send.len_bytes))
    }
}

/// A number that stands for nothing.
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
        let Some(offer) = self.table.get(self.next) else {
            return self.link.wait(false).map(|()| None);
        };
        if len_bytes > self.link.port.message_max_bytes as usize {
            let reason = format!("{len_bytes} bytes are more than a message may have");
            return Err(NetError::of_call(&self.link.port.name(), "isend", reason));
        }
        if len_bytes > offer.max_bytes as usize {
            let expected = format!("room for a message of {len_bytes} bytes");
            return Err(self.link.fail_protocol(expected, format!("an offer of {} bytes", offer.max_bytes)));
        }
        let Some(registered) = self.registry.get(registration) else {
            return Err(unknown(&self.link.port, registration));
        };
        let local = (registered.region.local_key(), registered.is_host);
        // SAFETY: the caller's.
        unsafe { self.post(&offer, start, len_bytes, local)? };
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
        assert_eq!(Cut::new(&config, false).notice_apart_bytes, 100);
        assert_eq!(Cut::new(&config, true).notice_apart_bytes, usize::MAX);
        let forced = IbConfig { adaptive_routing: Some(true), ..config };
        assert_eq!(Cut::new(&forced, true).notice_apart_bytes, 100);
    }
}
