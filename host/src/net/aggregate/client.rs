//! The network of heads that meet at aggregators.

use super::NAME;
use super::arriving::Arriving;
use super::comm::{AggregatorComm, OPERATION_MAX_BYTES};
use super::frame::{JobId, is_reduced};
use super::meeting::Meeting;
use super::wire::Carrier;
use crate::bootstrap::secret::Secret;
use crate::net::coll::{CollComm, CollConnector, CollListener, CollNet, Head, Windows};
use crate::net::outcome::Outcome;
use crate::net::{HANDLE_BYTES, MemoryKinds, Net, NetError, NetHandle, NetProperties, UNKNOWN_MBPS};
use crate::os::{look_up_at, preferred};
use crate::wire::fixed::{Malformed, Reader};
use oxccl_shared::abi::{DataType, RedOp, fnv1a};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first bytes of its handles.
const MAGIC: [u8; 4] = *b"OxAg";
const VERSION: u16 = 3;
/// Most servers of a network.
const SERVERS_MAX: usize = 16;
/// A round trip over TCP through a server that is awake, in order of magnitude.
const LATENCY_US: f32 = 50.0;

/// Which aggregators to use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AggregatorConfig {
    /// `host:port` of each, the same list on all ranks (`OXCCL_AGGREGATOR`).
    pub servers: Vec<String>,
    /// What they share with the ranks, or why there is nothing.
    pub secret: Result<Secret, String>,
    /// How long a server may take to answer. Less than the bootstrap's timeout, after which the heads give up without naming it.
    pub connect_timeout: Duration,
    /// When a silent host counts as gone.
    pub peer_dead_after: Duration,
    /// By which network data go (`OXCCL_AGGREGATOR_NET`); none is TCP.
    pub net: Option<String>,
}

/// How data travel between heads and servers.
#[derive(Clone, Debug)]
pub enum Carriage {
    /// Over TCP.
    Tcp {
        /// Whether they are encrypted.
        encrypt: bool,
    },
    /// By this network's messages.
    Network(Arc<dyn Net>),
}

/// Aggregators, as one device, or as one for each of the network's.
#[derive(Debug)]
struct Aggregators {
    name: String,
    /// Of the list of servers.
    digest: u64,
    addrs: Vec<SocketAddr>,
    secret: Secret,
    config: AggregatorConfig,
    carriage: Carriage,
}

/// The network that reduces through these aggregators.
///
/// # Errors
/// There is no secret, or a server's name has no address.
pub fn open(config: &AggregatorConfig, carriage: Carriage) -> Result<Arc<dyn CollNet>, NetError> {
    let name = format!("{NAME} {}", config.servers.join(","));
    let wrong = |reason: String| NetError::of_call(&name, "OXCCL_AGGREGATOR", reason);
    if !(1..=SERVERS_MAX).contains(&config.servers.len()) {
        return Err(wrong(format!(
            "{} servers are named; 1 to {SERVERS_MAX} can be used",
            config.servers.len()
        )));
    }
    let secret = config.secret.clone().map_err(wrong)?;
    let mut addrs = Vec::new();
    for server in &config.servers {
        let addr = look_up_at(server, config.connect_timeout).and_then(preferred);
        addrs.push(addr.map_err(|error| wrong(format!("{server}: {error}")))?);
    }
    let digest = fnv1a::extend(fnv1a::BASIS, name.as_bytes());
    let config = config.clone();
    let aggregators = Aggregators { name, digest, addrs, secret, config, carriage };
    Ok(Arc::new(AggregatorNet(Arc::new(aggregators))))
}

impl Aggregators {
    fn devices(&self) -> u32 {
        match &self.carriage {
            Carriage::Tcp { .. } => 1,
            Carriage::Network(net) => net.devices(),
        }
    }

    fn check(&self, device: u32) -> Result<(), NetError> {
        let devices = self.devices();
        if device < devices {
            return Ok(());
        }
        Err(NetError::NoDevice { net: self.name.clone(), device, devices })
    }

    /// Its name in messages.
    fn device_name(&self, device: u32) -> Result<String, NetError> {
        match &self.carriage {
            Carriage::Tcp { .. } => Ok(self.name.clone()),
            Carriage::Network(net) => Ok(format!("{} over {}", self.name, net.properties(device)?.name)),
        }
    }

    fn arrivals(&self, number: u32, job: JobId, head: Head, device: &str) -> Result<Vec<Arriving>, NetError> {
        let begin = |addr: &SocketAddr| {
            let (carrier, meeting) = match &self.carriage {
                Carriage::Tcp { encrypt: false } => (Carrier::Clear, None),
                Carriage::Tcp { encrypt: true } => (Carrier::Sealed, None),
                Carriage::Network(net) => (Carrier::Network, Some(Meeting::listen(net, number)?)),
            };
            let dead_after = self.config.peer_dead_after;
            Arriving::new(*addr, self.secret, (job, head), carrier, meeting, dead_after)
                .map_err(|error| NetError::of_io(device, Some(addr.to_string()), "connect", &error))
        };
        self.addrs.iter().map(begin).collect()
    }
}

#[derive(Debug)]
struct AggregatorNet(Arc<Aggregators>);

impl CollNet for AggregatorNet {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> u32 {
        self.0.devices()
    }

    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        self.0.check(device)?;
        let name = self.0.device_name(device)?;
        // Where the device is, and what it carries.
        if let Carriage::Network(net) = &self.0.carriage {
            let (facts, memory) = (net.properties(device)?, MemoryKinds::HOST);
            let latency_us = LATENCY_US.min(2.0 * facts.latency_us.max(1.0));
            return Ok(NetProperties {
                name,
                memory,
                latency_us,
                message_max_bytes: OPERATION_MAX_BYTES,
                ..facts
            });
        }
        Ok(NetProperties {
            name,
            pci_path: None,
            guid: 0,
            memory: MemoryKinds::HOST,
            registers_globally: true,
            speed_mbps: UNKNOWN_MBPS,
            port: 0,
            latency_us: LATENCY_US,
            comms_max: u32::MAX,
            message_max_bytes: OPERATION_MAX_BYTES,
        })
    }

    fn reduces(&self, _dtype: DataType, op: RedOp) -> Result<bool, NetError> {
        Ok(is_reduced(op))
    }

    fn windows(&self) -> Windows {
        Windows::ALL
    }

    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn CollListener>), NetError> {
        self.0.check(device)?;
        let mut job = JobId::default();
        getrandom::fill(&mut job)
            .map_err(|error| NetError::of_call(&self.0.name, "getrandom", error.to_string()))?;
        Ok((to_handle(job, self.0.digest), Box::new(Waiting { net: self.0.clone(), number: device })))
    }
}

/// A head's handle: the job's number, if it is head 0, and the digest of the servers.
fn to_handle(job: JobId, digest: u64) -> NetHandle {
    let mut bytes = [0; HANDLE_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..22].copy_from_slice(&job);
    bytes[22..30].copy_from_slice(&digest.to_le_bytes());
    NetHandle(bytes)
}

fn of_handle(handle: &NetHandle, digest: u64) -> Result<JobId, &'static str> {
    let mut reader = Reader::new(&handle.0);
    if reader.array() != Ok(MAGIC) {
        return Err("is of another network");
    }
    if reader.u16() != Ok(VERSION) {
        return Err("is of another version of OxCCL");
    }
    let read = || -> Result<(JobId, u64), Malformed> { Ok((reader.array()?, reader.u64()?)) };
    let (job, theirs) = { read }().map_err(|Malformed| "is damaged")?;
    if theirs == digest {
        Ok(job)
    } else {
        Err("names other servers; OXCCL_AGGREGATOR must be equal on all ranks")
    }
}

/// A head that waits for the others' handles.
struct Waiting {
    net: Arc<Aggregators>,
    /// Its device.
    number: u32,
}

impl CollListener for Waiting {
    fn join(self: Box<Self>, handles: &[NetHandle], index: u32) -> Result<Box<dyn CollConnector>, NetError> {
        let head = Head { index, count: handles.len() as u32 };
        let device = format!("{} ({head})", self.net.device_name(self.number)?);
        if index as usize >= handles.len() {
            return Err(NetError::of_call(&device, "OxCCL", "there is no handle of it".to_owned()));
        }
        let mut jobs = Vec::with_capacity(handles.len());
        for (other, handle) in handles.iter().enumerate() {
            let job = of_handle(handle, self.net.digest).map_err(|why| {
                NetError::of_call(&device, "connect", format!("head {other}'s handle {why}"))
            })?;
            jobs.push(job);
        }
        let arriving = self.net.arrivals(self.number, jobs[0], head, &device)?;
        let timeout = self.net.config.connect_timeout;
        Ok(Box::new(Connecting {
            arriving,
            device,
            head,
            deadline: Instant::now() + timeout,
            timeout,
            outcome: Outcome::default(),
        }))
    }
}

/// A head on its way to all servers.
struct Connecting {
    arriving: Vec<Arriving>,
    device: String,
    head: Head,
    /// For the servers' first answers; how long the heads may take is the caller's to say.
    deadline: Instant,
    timeout: Duration,
    outcome: Outcome,
}

impl Connecting {
    fn advance(&mut self) -> Result<bool, NetError> {
        let mut all_are_welcome = true;
        for arriving in &mut self.arriving {
            let failed = |reason: String, peer: SocketAddr| NetError::Call {
                device: self.device.clone(),
                peer: Some(peer.to_string()),
                call: "connect",
                reason,
            };
            let peer = arriving.addr();
            all_are_welcome &= arriving.advance().map_err(|error| failed(error, peer))?;
            if !arriving.has_answered() && Instant::now() >= self.deadline {
                return Err(failed(format!("no answer within {:?}", self.timeout), peer));
            }
        }
        Ok(all_are_welcome)
    }
}

impl CollConnector for Connecting {
    fn poll_join(&mut self) -> Result<Option<Box<dyn CollComm>>, NetError> {
        self.outcome.check_open()?;
        let step = self.advance();
        let settled = self.outcome.settle(step, &self.device, "poll_join");
        if !settled.inspect_err(|_| self.arriving.clear())? {
            return Ok(None);
        }
        let links = self.arriving.drain(..).filter_map(Arriving::into_link).collect();
        Ok(Some(Box::new(AggregatorComm::new(self.device.clone(), self.head, links))))
    }
}
