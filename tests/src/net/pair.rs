//! Two ends of a connection, driven by one thread or two, never for longer than [`PATIENCE`].

use oxccl::net::{Comm, Net, NetError, NetMemory, NetMemoryKind, RecvComm, Registration, Request, SendComm};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What no step of a test needs, even on a machine that does ten other things.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks until there is an answer.
///
/// # Panics
/// After [`PATIENCE`].
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: nothing after {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// A connection.
pub struct Pair {
    /// Its one end.
    pub send: SendEnd,
    /// Its other end.
    pub recv: RecvEnd,
}

/// A connection of a network's first device with itself.
pub fn pair(net: &Arc<dyn Net>) -> Pair {
    let (handle, mut listener) = net.listen(0).expect("device 0 listens");
    let mut connector = net.connect(0, &handle).expect("the handle is good");
    let (mut send, mut recv) = (None, None);
    until("connecting", || {
        if send.is_none() {
            send = connector.poll_connect().expect("the listener is there");
        }
        if recv.is_none() {
            recv = listener.poll_accept().expect("the connector is honest");
        }
        (send.is_some() && recv.is_some()).then_some(())
    });
    let (send, recv) = (send.expect("connected"), recv.expect("accepted"));
    Pair {
        send: SendEnd { comm: send, posted: VecDeque::new() },
        recv: RecvEnd { comm: recv, posted: VecDeque::new() },
    }
}

/// Registers memory of this process.
///
/// # Safety
/// As [`Comm::register`].
unsafe fn register<C: Comm + ?Sized>(
    comm: &mut C,
    start: *mut u8,
    len_bytes: usize,
) -> Result<Registration, NetError> {
    let memory = NetMemory { start: start.cast(), len_bytes, kind: NetMemoryKind::Host };
    // SAFETY: the caller's promise.
    unsafe { comm.register(memory) }
}

/// A sending end that owns what it sends.
pub struct SendEnd {
    /// The communicator.
    pub comm: Box<dyn SendComm>,
    posted: VecDeque<(Request, Vec<u8>, Registration)>,
}

/// A receiving end that owns what it receives.
pub struct RecvEnd {
    /// The communicator.
    pub comm: Box<dyn RecvComm>,
    posted: VecDeque<(Request, Vec<u8>, Registration)>,
}

impl SendEnd {
    /// Posts a message; no if the network does not take it now.
    pub fn post(&mut self, message: &[u8]) -> Result<bool, NetError> {
        // One byte more, so that even an empty message has an address of its own.
        let mut memory = message.to_vec();
        memory.push(0);
        // SAFETY: `posted` keeps the memory, or it is deregistered below; a vector's bytes do not move.
        let registration = unsafe { register(&mut *self.comm, memory.as_mut_ptr(), memory.len()) }?;
        // SAFETY: the memory was registered, and nobody writes it until the request completes.
        match unsafe { self.comm.isend(memory.as_ptr(), message.len(), registration) }? {
            Some(request) => self.posted.push_back((request, memory, registration)),
            None => {
                self.comm.deregister(registration).expect("it was registered");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks for the oldest send, if there is one: its length once it is done.
    pub fn oldest(&mut self) -> Result<Option<usize>, NetError> {
        let Some((request, ..)) = self.posted.front() else { return Ok(None) };
        let done = self.comm.test(*request)?;
        if done.is_some() {
            let (_, memory, registration) = self.posted.pop_front().expect("it is there");
            self.comm.deregister(registration).expect("it was registered");
            drop(memory);
        }
        Ok(done)
    }

    /// Sends in flight.
    pub fn under_way(&self) -> usize {
        self.posted.len()
    }

    /// The requests in flight, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.posted.iter().map(|posted| posted.0).collect()
    }
}

/// What lies behind every receive's memory, and must stay.
const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 64;

impl RecvEnd {
    /// Posts a receive; no if the network does not take it now.
    pub fn post(&mut self, max_bytes: usize) -> Result<bool, NetError> {
        let mut memory = vec![GUARD; max_bytes + GUARD_BYTES];
        // SAFETY: `posted` keeps the memory, or it is deregistered below; a vector's bytes do not move.
        let registration = unsafe { register(&mut *self.comm, memory.as_mut_ptr(), max_bytes.max(1)) }?;
        // SAFETY: the memory was registered, and nobody accesses it until the request completes.
        match unsafe { self.comm.irecv(memory.as_mut_ptr(), max_bytes, registration) }? {
            Some(request) => self.posted.push_back((request, memory, registration)),
            None => {
                self.comm.deregister(registration).expect("it was registered");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tests the receive at `index` of those in flight, if there is one; returns its message once it has arrived.
    pub fn at(&mut self, index: usize) -> Result<Option<Vec<u8>>, NetError> {
        let Some((request, ..)) = self.posted.get(index) else { return Ok(None) };
        let Some(len_bytes) = self.comm.test(*request)? else { return Ok(None) };
        let (_, mut memory, registration) = self.posted.remove(index).expect("it is there");
        // SAFETY: the memory was registered, and the receive is done.
        let flush = unsafe { self.comm.flush(memory.as_mut_ptr(), len_bytes, registration) }?;
        if let Some(flush) = flush {
            until("a flush", || self.comm.test(flush).expect("the connection is whole"));
        }
        self.comm.deregister(registration).expect("it was registered");
        let guard = &memory[memory.len() - GUARD_BYTES..];
        assert!(guard.iter().all(|byte| *byte == GUARD), "bytes behind the receive's memory were written");
        memory.truncate(len_bytes);
        Ok(Some(memory))
    }

    /// Asks for the oldest receive.
    pub fn oldest(&mut self) -> Result<Option<Vec<u8>>, NetError> {
        self.at(0)
    }

    /// Receives in flight.
    pub fn under_way(&self) -> usize {
        self.posted.len()
    }
}

/// Recognisable bytes.
pub fn message(number: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|i| (i.wrapping_mul(31) ^ i >> 8 ^ number.wrapping_mul(97)) as u8).collect()
}

impl Pair {
    /// Sends messages of these lengths, as many at once as the network takes, into receives of `room(length)` bytes. All must
    /// arrive, in order and unchanged.
    pub fn exchange(&mut self, lengths: &[usize], room: impl Fn(usize) -> usize) {
        let (mut sent, mut posted, mut got) = (0, 0, 0);
        until("an exchange of messages", || {
            if sent < lengths.len() {
                sent += usize::from(
                    self.send.post(&message(sent, lengths[sent])).expect("the connection is whole"),
                );
            }
            if posted < lengths.len() {
                posted +=
                    usize::from(self.recv.post(room(lengths[posted])).expect("the connection is whole"));
            }
            while self.send.oldest().expect("the connection is whole").is_some() {}
            while let Some(bytes) = self.recv.oldest().expect("the connection is whole") {
                let len_bytes = bytes.len();
                assert!(
                    bytes == message(got, lengths[got]),
                    "message {got} of {} came as {len_bytes}",
                    lengths[got]
                );
                got += 1;
            }
            (got == lengths.len() && self.send.under_way() == 0).then_some(())
        });
    }
}
