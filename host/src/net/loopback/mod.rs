//! Layer: host / net / loopback.
//! Takes: threads of one process.
//! Gives: a network without hardware: [`super::message`] uses ring buffers instead of sockets. For tests, and to
//! separate the costs of a connection from those of the kernel.
//! Never: blocks, locks or allocates once a connection is up.

mod pipe;

use super::message::{Ends, MESSAGE_MAX_BYTES, Receiver, Sender};
use super::{
    Connector, HANDLE_BYTES, Listener, MemoryKinds, Net, NetError, NetHandle, NetProperties, RecvComm,
    SendComm,
};
use pipe::{PipeReader, PipeWriter, pipe};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

const NAME: &str = "Loopback";
const DEVICE: &str = "loopback0";
const MAGIC: [u8; 4] = *b"OxLo";
/// Most bytes in flight on a stream: fewer than a long message, so that those stop in the middle as on a wire.
const PIPE_BYTES: usize = 64 << 10;

/// Connections within one process; each consists of a control stream and `data_lanes` others.
#[derive(Debug)]
pub struct Loopback {
    data_lanes: usize,
    /// Connections waiting for their listeners, by the listener's number. Locked while connections are set up.
    ports: Arc<Mutex<HashMap<u64, Port>>>,
}

type Port = Weak<Mutex<Option<Vec<PipeReader>>>>;

impl Loopback {
    /// A new network: its handles are invalid for any other.
    pub fn new(data_lanes: usize) -> Loopback {
        Loopback { data_lanes, ports: Arc::default() }
    }

    fn check(&self, device: u32) -> Result<(), NetError> {
        if device == 0 {
            Ok(())
        } else {
            Err(NetError::NoDevice { net: NAME.to_owned(), device, devices: 1 })
        }
    }
}

impl Net for Loopback {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> u32 {
        1
    }

    fn is_moved_by_processors(&self) -> bool {
        true
    }

    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        self.check(device)?;
        Ok(NetProperties {
            name: DEVICE.to_owned(),
            pci_path: None,
            guid: 0,
            memory: MemoryKinds::HOST,
            registers_globally: true,
            speed_mbps: 100_000,
            port: 0,
            latency_us: 0.0,
            comms_max: u32::MAX,
            message_max_bytes: MESSAGE_MAX_BYTES,
        })
    }

    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        self.check(device)?;
        let number =
            getrandom::u64().map_err(|error| NetError::of_call(DEVICE, "getrandom", error.to_string()))?;
        let place = Arc::new(Mutex::new(None));
        let mut ports = locked(&self.ports);
        ports.retain(|_, port| port.strong_count() > 0);
        ports.insert(number, Arc::downgrade(&place));
        let mut handle = [0; HANDLE_BYTES];
        handle[..4].copy_from_slice(&MAGIC);
        handle[4..12].copy_from_slice(&number.to_le_bytes());
        Ok((NetHandle(handle), Box::new(LoopbackListener { place })))
    }

    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        self.check(device)?;
        let bad = |reason: &str| NetError::BadHandle { net: NAME.to_owned(), reason: reason.to_owned() };
        let [m0, m1, m2, m3, n @ ..] = *handle.0.first_chunk::<12>().ok_or_else(|| bad("too short"))?;
        if [m0, m1, m2, m3] != MAGIC || handle.0[12..].iter().any(|byte| *byte != 0) {
            return Err(bad("of another network"));
        }
        let port = locked(&self.ports).get(&u64::from_le_bytes(n)).cloned();
        let port = port.ok_or_else(|| bad("of no listener of this process"))?;
        Ok(Box::new(LoopbackConnector { port, data_lanes: self.data_lanes }))
    }
}

struct LoopbackListener {
    place: Arc<Mutex<Option<Vec<PipeReader>>>>,
}

struct LoopbackConnector {
    port: Port,
    data_lanes: usize,
}

/// This end's device and the other end's address, which are the same.
fn ends() -> Ends {
    Ends { device: DEVICE.to_owned(), peer: format!("{DEVICE} of process {}", std::process::id()) }
}

impl Listener for LoopbackListener {
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let lanes = locked(&self.place).take();
        Ok(lanes.map(|lanes| -> Box<dyn RecvComm> { Box::new(Receiver::new(ends(), lanes)) }))
    }
}

impl Connector for LoopbackConnector {
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let closed = NetError::Closed { device: DEVICE.to_owned(), peer: ends().peer, mid_message: false };
        let place = std::mem::take(&mut self.port).upgrade().ok_or(closed)?;
        let lanes: Vec<(PipeWriter, PipeReader)> = (0..=self.data_lanes).map(|_| pipe(PIPE_BYTES)).collect();
        let (writers, readers) = lanes.into_iter().unzip();
        *locked(&place) = Some(readers);
        Ok(Some(Box::new(Sender::<PipeWriter>::new(ends(), writers))))
    }
}

/// A panic under a lock leaves the data consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
