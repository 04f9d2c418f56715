//! What both ends of a connection have: queue pairs, their completions, the watch on the peer, and why it broke.

use super::card::Card;
use super::config::IbConfig;
use super::port::Port;
use super::verbs::abi::value::*;
use super::verbs::abi::{QpCap, SendWr, Wc};
use super::verbs::{CompletionQueue, QueuePair, Remote, Service, words};
use super::watch::{PeerWatch, Pulse};
use crate::net::{NetError, REQUESTS_MAX};
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Short messages and offers are copied into their requests.
const INLINE_BYTES: u32 = 64;
/// Completions taken at once.
const POLL_BATCH: usize = 16;
/// The peer's socket is looked at once in so many polls that found nothing: that is a system call.
const POLLS_PER_PULSE: u32 = 1024;
/// When the peer's socket closes, what it sent last may still be on its way through the device.
const GRACE: Duration = Duration::from_millis(250);

/// What a request was, in the upper half of its number; the lower half says which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Kind {
    Data = 1,
    Offer = 2,
    Receive = 3,
    Flush = 4,
}

impl Kind {
    pub(super) fn id(self, number: u32) -> u64 {
        u64::from(self as u32) << 32 | u64::from(number)
    }

    fn of(id: u64) -> Option<Kind> {
        [Kind::Data, Kind::Offer, Kind::Receive, Kind::Flush]
            .into_iter()
            .find(|kind| *kind as u64 == id >> 32)
    }

    fn words(self) -> &'static str {
        match self {
            Kind::Data => "RDMA write of a message",
            Kind::Offer => "RDMA write of an offer",
            Kind::Receive => "receive",
            Kind::Flush => "RDMA read that flushes",
        }
    }
}

/// Queue pairs that wait for the peer's.
pub(super) struct Lanes {
    pub port: Arc<Port>,
    pub cq: Arc<CompletionQueue>,
    pub qps: Vec<QueuePair>,
}

impl Lanes {
    /// # Errors
    /// What the driver said.
    pub(super) fn new(port: &Arc<Port>, count: usize) -> Result<Lanes, NetError> {
        let failed = |call, error: io::Error| NetError::of_io(&port.name(), None, call, &error);
        // Per queue pair 32 messages; besides, once, offers and flushes.
        let completions = (REQUESTS_MAX * (count + 3)) as u32;
        let cq = CompletionQueue::new(&port.device, completions)
            .map_err(|error| failed("ibv_create_cq", error))?;
        let cq = Arc::new(cq);
        let qps = (0..count).map(|_| Lanes::queue_pair(port, &cq)).collect::<io::Result<Vec<_>>>();
        let qps = qps.map_err(|error| failed("ibv_create_qp", error))?;
        Ok(Lanes { port: port.clone(), cq, qps })
    }

    /// A queue pair with room for all messages that may be under way.
    pub(super) fn queue_pair(port: &Port, cq: &Arc<CompletionQueue>) -> io::Result<QueuePair> {
        let cap = QpCap {
            max_send_wr: port.send_requests(),
            max_recv_wr: REQUESTS_MAX as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_BYTES,
        };
        // Some devices have no room in requests.
        QueuePair::new(&port.device, cq, cap)
            .or_else(|_| QueuePair::new(&port.device, cq, QpCap { max_inline_data: 0, ..cap }))
    }

    /// This end's card; the table is filled in by who has one.
    pub(super) fn card(&self, config: &IbConfig, psn: u32) -> Card {
        let port = &self.port;
        Card {
            name: port.name(),
            is_ethernet: port.is_ethernet,
            split_data: config.split_data,
            lid: port.lid,
            mtu: port.mtu as u16,
            psn,
            gid: port.gid.gid,
            table_address: 0,
            table_key: 0,
            qp_nums: self.qps.iter().map(QueuePair::number).collect(),
        }
    }

    /// Connects each queue pair to its partner.
    ///
    /// # Errors
    /// The ends cannot be connected, or what the driver said.
    pub(super) fn connect(
        self,
        config: &IbConfig,
        card: &Card,
        psn: u32,
        stream: TcpStream,
    ) -> Result<Link, NetError> {
        let port = self.port;
        let host = stream.peer_addr().map_or_else(|error| error.to_string(), |addr| addr.ip().to_string());
        let peer = format!("{} ({}) of host {host}", card.name, card.gid.address());
        let (device, found) = (port.name(), if card.is_ethernet { "RoCE" } else { "InfiniBand" });
        if card.is_ethernet != port.is_ethernet || card.qp_nums.len() != self.qps.len() {
            let expected = if port.is_ethernet { "RoCE" } else { "InfiniBand" };
            let (expected, found) = (
                format!("a port of {expected} with {} queue pairs", self.qps.len()),
                format!("one of {found} with {}", card.qp_nums.len()),
            );
            return Err(NetError::Protocol { device, peer, expected, found });
        }
        let path = port.path_to(card.lid, card.gid, config);
        for (qp, number) in self.qps.iter().zip(&card.qp_nums) {
            let remote = Remote { qp_num: *number, psn, mtu: port.mtu.min(u32::from(card.mtu)), path };
            qp.connect(&service(config), &remote, ACCESS_REMOTE_WRITE).map_err(|(call, error)| {
                let reason = format!(
                    "{error} (GID {} at index {}, to {})",
                    port.gid.gid.address(),
                    port.gid.index,
                    card.gid.address()
                );
                NetError::Call { device: device.clone(), peer: Some(peer.clone()), call, reason }
            })?;
        }
        Ok(Link {
            qps: self.qps,
            cq: self.cq,
            watch: PeerWatch::new(stream),
            port,
            peer,
            since: Instant::now(),
            quiet_polls: 0,
            closed_at: None,
            broken: None,
        })
    }
}

/// How this side's packets travel.
pub(super) fn service(config: &IbConfig) -> Service {
    Service { pkey_index: config.pkey_index, timeout: config.timeout, retry_count: config.retry_count }
}

/// A connection.
pub(super) struct Link {
    // Dropped in this order: first what makes the device touch memory.
    pub qps: Vec<QueuePair>,
    pub cq: Arc<CompletionQueue>,
    watch: PeerWatch,
    pub port: Arc<Port>,
    peer: String,
    since: Instant,
    quiet_polls: u32,
    closed_at: Option<Instant>,
    broken: Option<NetError>,
}

impl Link {
    /// # Errors
    /// Why the connection is broken, if it is.
    #[inline]
    pub(super) fn check(&self) -> Result<(), NetError> {
        self.broken.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Takes what has completed; `done` gets each request's number and its completion.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub(super) fn poll(&mut self, mut done: impl FnMut(Kind, u32, &Wc)) -> Result<(), NetError> {
        let mut completions = [Wc::default(); POLL_BATCH];
        loop {
            let count = match self.cq.poll(&mut completions) {
                Ok(count) => count,
                Err(error) => return Err(self.fail("ibv_poll_cq", &error)),
            };
            for completion in &completions[..count] {
                match Kind::of(completion.wr_id) {
                    Some(kind) if completion.status == WC_SUCCESS => {
                        done(kind, completion.wr_id as u32, completion)
                    }
                    kind => return Err(self.fail_completion(kind, completion)),
                }
            }
            if count > 0 {
                self.quiet_polls = 0;
            }
            if count < POLL_BATCH {
                return Ok(());
            }
        }
    }

    /// Call where something is awaited and did not come: finds out, now and then, that the peer or the device is gone.
    ///
    /// # Errors
    /// It is; the connection is broken. `mid_message` says whether a message was under way.
    #[inline]
    pub(super) fn wait(&mut self, mid_message: bool) -> Result<(), NetError> {
        self.quiet_polls += 1;
        if self.quiet_polls < POLLS_PER_PULSE && self.closed_at.is_none() {
            return Ok(());
        }
        self.quiet_polls = 0;
        self.look(mid_message)
    }

    #[cold]
    fn look(&mut self, mid_message: bool) -> Result<(), NetError> {
        let (device, peer) = (self.port.name(), self.peer.clone());
        if self.port.device.events().is_dead() {
            return Err(self.give_up(NetError::of_call(
                &device,
                "device",
                "it failed (IBV_EVENT_DEVICE_FATAL)".to_owned(),
            )));
        }
        match self.watch.pulse() {
            Pulse::Alive => Ok(()),
            Pulse::Closed => {
                let closed_at = *self.closed_at.get_or_insert_with(Instant::now);
                if closed_at.elapsed() < GRACE {
                    return Ok(());
                }
                Err(self.give_up(NetError::Closed { device, peer, mid_message }))
            }
            Pulse::Chatty => {
                let (expected, found) =
                    ("silence on the socket of the set-up".to_owned(), "bytes".to_owned());
                Err(self.give_up(NetError::Protocol { device, peer, expected, found }))
            }
            Pulse::Lost(error) => {
                Err(self.give_up(NetError::of_io(&device, Some(peer), "socket of the set-up", &error)))
            }
        }
    }

    /// Posts requests on a lane.
    ///
    /// # Errors
    /// The connection is broken.
    ///
    /// # Safety
    /// As [`QueuePair::post_send`].
    #[inline]
    pub(super) unsafe fn post(&mut self, lane: usize, request: &mut SendWr) -> Result<(), NetError> {
        // SAFETY: the caller's.
        unsafe { self.qps[lane].post_send(request) }.map_err(|error| self.fail("ibv_post_send", &error))
    }

    /// Posts a receive on a lane.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub(super) fn post_recv(&mut self, lane: usize, id: u64) -> Result<(), NetError> {
        self.qps[lane].post_recv(id).map_err(|error| self.fail("ibv_post_recv", &error))
    }

    /// The peer broke a rule of this protocol.
    #[cold]
    pub(super) fn fail_protocol(&mut self, expected: String, found: String) -> NetError {
        let (device, peer) = (self.port.name(), self.peer.clone());
        self.give_up(NetError::Protocol { device, peer, expected, found })
    }

    #[cold]
    pub(super) fn fail(&mut self, call: &'static str, error: &io::Error) -> NetError {
        self.give_up(NetError::of_io(&self.port.name(), Some(self.peer.clone()), call, error))
    }

    #[cold]
    fn fail_completion(&mut self, kind: Option<Kind>, completion: &Wc) -> NetError {
        let status = words::of_status(completion.status, completion.vendor_err);
        let mut numbers: Vec<u32> = self.qps.iter().map(QueuePair::number).collect();
        numbers.push(completion.qp_num);
        let events = self.port.device.events().about(self.port.number, &numbers, self.since);
        self.give_up(NetError::Call {
            device: self.port.name(),
            peer: Some(self.peer.clone()),
            call: kind.map_or("request", Kind::words),
            reason: format!("{status}{events} (queue pair {})", completion.qp_num),
        })
    }

    /// The first error stays; the peer learns that this end is finished.
    fn give_up(&mut self, error: NetError) -> NetError {
        self.watch.end();
        self.broken.get_or_insert(error).clone()
    }
}
