//! A network in memory that is worse than any: it moves a few bytes at a time, back to front, when it feels like it.

use crate::net::{Comm, NetError, NetMemory, REQUESTS_MAX, RecvComm, Registration, Request, SendComm};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// How a wire behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manners {
    /// Seed of its moods.
    pub(super) seed: u64,
    /// Bytes that it moves at a time at most.
    pub(super) burst_bytes: usize,
    /// Calls answered with "not now", of 8.
    pub(super) lazy_eighths: u64,
    /// Messages after which it breaks.
    pub(super) breaks_after: Option<u64>,
}

impl Manners {
    /// Moves everything at once.
    pub(super) const GOOD: Manners =
        Manners { seed: 1, burst_bytes: usize::MAX, lazy_eighths: 0, breaks_after: None };
}

/// A message that one end wants to send, or a place in which the other wants one.
struct Posted {
    request: usize,
    start: *mut u8,
    len_bytes: usize,
}

/// What lies between two ends.
struct Wire {
    manners: Manners,
    sends: VecDeque<Posted>,
    recvs: VecDeque<Posted>,
    /// Bytes of the first message that have not moved yet.
    left_bytes: Option<usize>,
    done: [[Option<Option<usize>>; REQUESTS_MAX]; 2],
    messages: u64,
    registered: [Vec<Range<usize>>; 2],
    /// Lengths of the messages that have moved.
    log: Vec<usize>,
}

// SAFETY: the addresses are used under the wire's lock, as the contract of a network allows.
unsafe impl Send for Wire {}

/// One end.
pub(super) struct End {
    wire: Arc<Mutex<Wire>>,
    side: usize,
}

const SEND: usize = 0;
const RECV: usize = 1;

/// Both ends of a connection.
pub(super) fn pair(manners: Manners) -> (End, End) {
    let wire = Wire {
        manners,
        sends: VecDeque::new(),
        recvs: VecDeque::new(),
        left_bytes: None,
        done: [[None; REQUESTS_MAX]; 2],
        messages: 0,
        registered: [const { Vec::new() }; 2],
        log: Vec::with_capacity(1 << 16),
    };
    let wire = Arc::new(Mutex::new(wire));
    (End { wire: wire.clone(), side: SEND }, End { wire, side: RECV })
}

impl Wire {
    fn random(&mut self, below: u64) -> u64 {
        self.manners.seed ^= self.manners.seed << 13;
        self.manners.seed ^= self.manners.seed >> 7;
        self.manners.seed ^= self.manners.seed << 17;
        self.manners.seed % below
    }

    fn check(&mut self, device: &str) -> Result<bool, NetError> {
        if self.manners.breaks_after.is_some_and(|count| self.messages >= count) {
            let (device, peer) = (device.to_owned(), "the other end".to_owned());
            return Err(NetError::Closed { device, peer, mid_message: self.left_bytes.is_some() });
        }
        Ok(self.random(8) >= self.manners.lazy_eighths)
    }

    fn post(
        &mut self,
        side: usize,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Option<Request> {
        let range = &self.registered[side][registration.0 as usize];
        let end = start.addr() + len_bytes;
        assert!(range.start <= start.addr() && end <= range.end, "not in the registered memory");
        let request = self.done[side].iter().position(Option::is_none)?;
        self.done[side][request] = Some(None);
        let queue = if side == SEND { &mut self.sends } else { &mut self.recvs };
        queue.push_back(Posted { request, start, len_bytes });
        Some(Request(request as u32))
    }

    /// Moves a burst of the first message that is posted at both ends, its last bytes first.
    fn step(&mut self) -> Result<(), NetError> {
        let (Some(send), Some(recv)) = (self.sends.front(), self.recvs.front()) else { return Ok(()) };
        let (from, to, len_bytes, room) = (send.start, recv.start, send.len_bytes, recv.len_bytes);
        if len_bytes > room {
            self.manners.breaks_after = Some(0);
            let (expected, found) = (format!("at most {room} bytes"), format!("{len_bytes} bytes"));
            let (device, peer) = ("memory".to_owned(), "the other end".to_owned());
            return Err(NetError::Protocol { device, peer, expected, found });
        }
        let left = self.left_bytes.unwrap_or(len_bytes);
        let burst = left.min(self.manners.burst_bytes);
        // SAFETY: both ends promised memory of that length to be left alone until their requests are done.
        unsafe { to.add(left - burst).copy_from_nonoverlapping(from.add(left - burst), burst) };
        self.left_bytes = (left > burst).then_some(left - burst);
        if self.left_bytes.is_none() {
            for (side, posted) in [self.sends.pop_front(), self.recvs.pop_front()].into_iter().enumerate() {
                self.done[side][posted.expect("both were there").request] = Some(Some(len_bytes));
            }
            self.messages += 1;
            self.log.push(len_bytes);
        }
        Ok(())
    }
}

impl End {
    /// Lengths of the messages that have moved so far.
    pub(super) fn log(&self) -> impl Fn() -> Vec<usize> + use<> {
        let wire = self.wire.clone();
        move || wire.lock().unwrap().log.clone()
    }

    fn begin(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        let mut wire = self.wire.lock().unwrap();
        let willing = wire.check("memory")?;
        Ok(if willing { wire.post(self.side, start, len_bytes, registration) } else { None })
    }
}

impl Drop for End {
    /// Whoever talks to a test that has failed shall not wait for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.wire.lock().unwrap().manners.breaks_after = Some(0);
        }
    }
}

impl Comm for End {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        let registered = &mut self.wire.lock().unwrap().registered[self.side];
        registered.push(memory.start.addr()..memory.start.addr() + memory.len_bytes);
        Ok(Registration(registered.len() as u32 - 1))
    }

    fn deregister(&mut self, _: Registration) -> Result<(), NetError> {
        Ok(())
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        let mut wire = self.wire.lock().unwrap();
        // It also tells late, and so in any order, of what it has done.
        let tells = wire.random(8) >= wire.manners.lazy_eighths;
        if let (true, Some(Some(len_bytes))) = (tells, wire.done[self.side][request.0 as usize]) {
            wire.done[self.side][request.0 as usize] = None;
            return Ok(Some(len_bytes));
        }
        if wire.check("memory")? {
            wire.step()?;
        }
        Ok(None)
    }
}

impl SendComm for End {
    unsafe fn isend(
        &mut self,
        start: *const u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.begin(start.cast_mut(), len_bytes, registration)
    }
}

impl RecvComm for End {
    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.begin(start, max_bytes, registration)
    }

    unsafe fn flush(
        &mut self,
        _: *mut u8,
        len_bytes: usize,
        _: Registration,
    ) -> Result<Option<Request>, NetError> {
        let mut wire = self.wire.lock().unwrap();
        let Some(request) = wire.done[RECV].iter().position(Option::is_none) else { return Ok(None) };
        wire.done[RECV][request] = Some(Some(len_bytes));
        Ok(Some(Request(request as u32)))
    }
}
