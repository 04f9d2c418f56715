//! The network on real verbs: two ports, `rxe0` and `rxe1`, that are cabled to each other. `cargo xtask softroce` and the stage
//! `softroce` of `cargo xtask test` run these in a guest that has them; elsewhere they are ignored.

mod failures;
mod messages;
mod set_up;

use super::{IbConfig, open};
use crate::bootstrap::InterfaceFilter;
use crate::net::socket::SocketConfig;
use crate::net::{Comm, Net, NetError, NetMemory, NetMemoryKind, RecvComm, Registration, Request, SendComm};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Upper bound of every wait in these tests; the guest is emulated.
const PATIENCE: Duration = Duration::from_secs(20);

fn config(change: impl FnOnce(&mut IbConfig)) -> IbConfig {
    let mut config = IbConfig::default();
    change(&mut config);
    config
}

fn open_with(change: impl FnOnce(&mut IbConfig)) -> Result<Arc<dyn Net>, NetError> {
    let mut socket = SocketConfig { interfaces: InterfaceFilter::parse("=lo"), ..SocketConfig::default() };
    socket.connect_timeout = PATIENCE;
    open(&config(change), &socket)
}

fn net(change: impl FnOnce(&mut IbConfig)) -> Arc<dyn Net> {
    open_with(change).expect("the guest has RoCE devices")
}

/// A sender on the first device and a receiver on the second.
fn pair_of(net: &dyn Net) -> (Box<dyn SendComm>, Box<dyn RecvComm>) {
    let (handle, mut listener) = net.listen(1).expect("a listener");
    let mut connector = net.connect(0, &handle).expect("a connector");
    let (mut sender, mut receiver) = (None, None);
    let start = Instant::now();
    while sender.is_none() || receiver.is_none() {
        assert!(start.elapsed() < PATIENCE, "the connection does not come about");
        if sender.is_none() {
            sender = connector.poll_connect().expect("connected");
        }
        if receiver.is_none() {
            receiver = listener.poll_accept().expect("accepted");
        }
    }
    (sender.expect("just checked"), receiver.expect("just checked"))
}

fn pair(change: impl FnOnce(&mut IbConfig)) -> (Box<dyn SendComm>, Box<dyn RecvComm>) {
    pair_of(&*net(change))
}

/// Memory with its registration. Dropped after the communicator, as tests declare it before.
struct Memory {
    bytes: Vec<u8>,
    registration: Registration,
}

impl Memory {
    fn new<C: Comm + ?Sized>(comm: &mut C, mut bytes: Vec<u8>) -> Memory {
        let (start, len_bytes) = (bytes.as_mut_ptr().cast(), bytes.len());
        let memory = NetMemory { start, len_bytes, kind: NetMemoryKind::Host };
        // SAFETY: the vector's buffer stays where it is, and tests keep it for longer than the communicator.
        let registration = unsafe { comm.register(memory) }.expect("registered");
        Memory { bytes, registration }
    }
}

/// Sends `len` bytes from `offset`, as soon as the receiver is ready.
fn send(sender: &mut dyn SendComm, memory: &Memory, offset: usize, len: usize) -> Result<Request, NetError> {
    assert!(offset + len <= memory.bytes.len());
    let start = Instant::now();
    loop {
        // SAFETY: within the memory, which tests leave alone until the request is done.
        let begun = unsafe { sender.isend(memory.bytes.as_ptr().add(offset), len, memory.registration)? };
        if let Some(request) = begun {
            return Ok(request);
        }
        assert!(start.elapsed() < PATIENCE, "no receive is posted");
    }
}

/// Posts a receive of at most `len` bytes at `offset`.
fn receive(receiver: &mut dyn RecvComm, memory: &mut Memory, offset: usize, len: usize) -> Request {
    assert!(offset + len <= memory.bytes.len());
    let registration = memory.registration;
    // SAFETY: as in `send`.
    let begun = unsafe { receiver.irecv(memory.bytes.as_mut_ptr().add(offset), len, registration) };
    begun.expect("the connection works").expect("a free request")
}

/// Waits for one end's request.
fn finish<C: Comm + ?Sized>(comm: &mut C, request: Request) -> Result<usize, NetError> {
    let start = Instant::now();
    loop {
        if let Some(len) = comm.test(request)? {
            return Ok(len);
        }
        assert!(start.elapsed() < PATIENCE, "the request does not end");
    }
}

/// Bytes that differ from their neighbours and from other seeds'.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
