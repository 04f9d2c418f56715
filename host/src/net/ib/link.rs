//! The common part of both ends of a connection: queue pairs, completions, the check that the peer lives, and the
//! first error.

use super::config::IbConfig;
use super::metadata::Metadata;
use super::port::Port;
use super::verbs::abi::value::*;
use super::verbs::abi::{QpCap, SendWr, Wc};
use super::verbs::{CompletionQueue, QueuePair, Remote, Service, words};
use super::watch::{PeerState, PeerWatch};
use crate::net::{NetError, REQUESTS_MAX};
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Short messages and CTS entries are inlined into their requests.
const INLINE_BYTES: u32 = 64;
/// Completions per `ibv_poll_cq`.
const POLL_BATCH: usize = 16;
/// Empty polls between two checks of the peer's socket, each of which is a system call.
const POLLS_PER_PEER_CHECK: u32 = 1024;
/// When the peer's socket closes, its last packets may still be in flight through the device.
const GRACE: Duration = Duration::from_millis(250);

/// The kind of a request, in the upper half of its `wr_id`; the lower half is an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Kind {
    Data = 1,
    Cts = 2,
    Receive = 3,
    Flush = 4,
}

impl Kind {
    pub(super) fn id(self, number: u32) -> u64 {
        u64::from(self as u32) << 32 | u64::from(number)
    }

    fn of(id: u64) -> Option<Kind> {
        [Kind::Data, Kind::Cts, Kind::Receive, Kind::Flush].into_iter().find(|kind| *kind as u64 == id >> 32)
    }

    fn words(self) -> &'static str {
        match self {
            Kind::Data => "RDMA write of a message",
            Kind::Cts => "RDMA write of a CTS entry",
            Kind::Receive => "receive",
            Kind::Flush => "RDMA read that flushes",
        }
    }
}

/// Queue pairs that are not connected yet.
pub(super) struct QueuePairs {
    pub port: Arc<Port>,
    pub cq: Arc<CompletionQueue>,
    pub qps: Vec<QueuePair>,
}

impl QueuePairs {
    /// # Errors
    /// The driver's error.
    pub(super) fn new(port: &Arc<Port>, count: usize) -> Result<QueuePairs, NetError> {
        let failed = |call, error: io::Error| NetError::of_io(&port.name(), None, call, &error);
        // 32 messages per queue pair, and once for the connection the CTS entries and the flushes.
        let completions = (REQUESTS_MAX * (count + 3)) as u32;
        let cq = CompletionQueue::new(&port.device, completions)
            .map_err(|error| failed("ibv_create_cq", error))?;
        let cq = Arc::new(cq);
        let qps = (0..count).map(|_| QueuePairs::queue_pair(port, &cq)).collect::<io::Result<Vec<_>>>();
        let qps = qps.map_err(|error| failed("ibv_create_qp", error))?;
        Ok(QueuePairs { port: port.clone(), cq, qps })
    }

    /// A queue pair with room for all messages that may be in flight.
    pub(super) fn queue_pair(port: &Port, cq: &Arc<CompletionQueue>) -> io::Result<QueuePair> {
        let cap = QpCap {
            max_send_wr: port.send_requests(),
            max_recv_wr: REQUESTS_MAX as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_BYTES,
        };
        // Some devices support no inline data.
        QueuePair::new(&port.device, cq, cap)
            .or_else(|_| QueuePair::new(&port.device, cq, QpCap { max_inline_data: 0, ..cap }))
    }

    /// This end's metadata. The connector fills in the table.
    pub(super) fn metadata(&self, config: &IbConfig, psn: u32) -> Metadata {
        let port = &self.port;
        Metadata {
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

    /// Connects each queue pair to the peer's of the same index.
    ///
    /// # Errors
    /// The ends do not fit each other, or the driver's error.
    pub(super) fn connect(
        self,
        config: &IbConfig,
        metadata: &Metadata,
        psn: u32,
        stream: TcpStream,
    ) -> Result<Link, NetError> {
        let port = self.port;
        let host = stream.peer_addr().map_or_else(|error| error.to_string(), |addr| addr.ip().to_string());
        let peer = format!("{} ({}) of host {host}", metadata.name, metadata.gid.address());
        let (device, found) = (port.name(), if metadata.is_ethernet { "RoCE" } else { "InfiniBand" });
        if metadata.is_ethernet != port.is_ethernet || metadata.qp_nums.len() != self.qps.len() {
            let expected = if port.is_ethernet { "RoCE" } else { "InfiniBand" };
            let (expected, found) = (
                format!("a port of {expected} with {} queue pairs", self.qps.len()),
                format!("one of {found} with {}", metadata.qp_nums.len()),
            );
            return Err(NetError::Protocol { device, peer, expected, found });
        }
        let path = port.path_to(metadata.lid, metadata.gid, config);
        for (qp, number) in self.qps.iter().zip(&metadata.qp_nums) {
            let remote = Remote { qp_num: *number, psn, mtu: port.mtu.min(u32::from(metadata.mtu)), path };
            qp.connect(&service(config), &remote, ACCESS_REMOTE_WRITE).map_err(|(call, error)| {
                let reason = format!(
                    "{error} (GID {} at index {}, to {})",
                    port.gid.gid.address(),
                    port.gid.index,
                    metadata.gid.address()
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

/// Packet options of this side.
pub(super) fn service(config: &IbConfig) -> Service {
    Service { pkey_index: config.pkey_index, timeout: config.timeout, retry_count: config.retry_count }
}

/// A connection.
pub(super) struct Link {
    // Drop order matters: first the resources through which the device accesses memory.
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
    /// The connection's first error, if it is broken.
    #[inline]
    pub(super) fn check(&self) -> Result<(), NetError> {
        self.broken.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Polls completions; `done` receives each request's kind, index and completion.
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

    /// Call when a poll found nothing that was awaited: checks at intervals whether the peer and the device are
    /// alive.
    ///
    /// # Errors
    /// One of them is gone; the connection is broken. `mid_message` says whether a message was in flight.
    #[inline]
    pub(super) fn wait(&mut self, mid_message: bool) -> Result<(), NetError> {
        self.quiet_polls += 1;
        if self.quiet_polls < POLLS_PER_PEER_CHECK && self.closed_at.is_none() {
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
        match self.watch.state() {
            PeerState::Alive => Ok(()),
            PeerState::Closed => {
                let closed_at = *self.closed_at.get_or_insert_with(Instant::now);
                if closed_at.elapsed() < GRACE {
                    return Ok(());
                }
                Err(self.give_up(NetError::Closed { device, peer, mid_message }))
            }
            PeerState::UnexpectedData => {
                let (expected, found) =
                    ("silence on the socket of the set-up".to_owned(), "bytes".to_owned());
                Err(self.give_up(NetError::Protocol { device, peer, expected, found }))
            }
            PeerState::Lost(error) => {
                Err(self.give_up(NetError::of_io(&device, Some(peer), "socket of the set-up", &error)))
            }
        }
    }

    /// Posts requests on a queue pair.
    ///
    /// # Errors
    /// The connection is broken.
    ///
    /// # Safety
    /// As [`QueuePair::post_send`].
    #[inline]
    pub(super) unsafe fn post(&mut self, qp: usize, request: &mut SendWr) -> Result<(), NetError> {
        // SAFETY: the caller's.
        unsafe { self.qps[qp].post_send(request) }.map_err(|error| self.fail("ibv_post_send", &error))
    }

    /// Posts a receive on a queue pair.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub(super) fn post_recv(&mut self, qp: usize, id: u64) -> Result<(), NetError> {
        self.qps[qp].post_recv(id).map_err(|error| self.fail("ibv_post_recv", &error))
    }

    /// Fails the connection because the peer violated the protocol.
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

    /// Records the first error, and closes the socket so that the peer learns that this end has failed.
    fn give_up(&mut self, error: NetError) -> NetError {
        self.watch.end();
        self.broken.get_or_insert(error).clone()
    }
}
