//! Layer: host / net.
//! Takes: any network, a seed, and the faults to inject.
//! Gives: the same network with faults: delayed requests, stalled links, short receives, failing calls, vanishing
//! peers. Everything follows from the seed, so a failure can be reproduced.
//! Never: changes a byte, an order, or the inner network's own errors.

use super::{
    Comm, Connector, Listener, Net, NetError, NetHandle, NetMemory, NetProperties, REQUESTS_MAX, RecvComm,
    Registration, Request, SendComm,
};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The faults to inject. `Default`: none.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Seed of the random choices.
    pub seed: u64,
    /// Of a thousand requests, how many are refused at first (`None`); of a thousand tests, how many report nothing.
    pub late_per_mille: u32,
    /// Of a thousand requests, how many are withheld after their completion, ...
    pub held_per_mille: u32,
    /// ... for at most this long.
    pub held_max: Duration,
    /// At this request of a communicator (from 0) its link stalls once, ...
    pub stall_at: Option<u64>,
    /// ... for this long.
    pub stall: Duration,
    /// This receive of a communicator (from 0) reports one byte too few.
    pub short_at: Option<u64>,
    /// This request of a communicator (from 0) fails, with every later call.
    pub fail_at: Option<u64>,
    /// At this request of a communicator (from 0) the connection is cut: both ends see the other one vanish.
    pub cut_at: Option<u64>,
    /// Restricts `stall`, `short`, `fail` and `cut` to the connection of this number. Connections count from 0 in the
    /// order of their creation in this process, both ends separately. Default: all connections.
    pub only_connection: Option<u64>,
}

/// A network with the faults of a [`FaultPlan`].
#[derive(Debug)]
pub struct FaultNet {
    inner: Arc<dyn Net>,
    plan: Arc<FaultPlan>,
    /// Communicators so far. Locked while connections are created.
    comms: Arc<Mutex<u64>>,
}

impl FaultNet {
    /// `inner` with faults.
    pub fn new(inner: Arc<dyn Net>, plan: FaultPlan) -> FaultNet {
        FaultNet { inner, plan: Arc::new(plan), comms: Arc::default() }
    }
}

/// Wraps communicators.
struct Maker {
    device: String,
    plan: Arc<FaultPlan>,
    comms: Arc<Mutex<u64>>,
}

impl FaultNet {
    fn maker(&self, device: u32) -> Result<Maker, NetError> {
        let device = self.inner.properties(device)?.name;
        Ok(Maker { device, plan: self.plan.clone(), comms: self.comms.clone() })
    }
}

impl Net for FaultNet {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn devices(&self) -> u32 {
        self.inner.devices()
    }

    fn is_moved_by_processors(&self) -> bool {
        self.inner.is_moved_by_processors()
    }

    fn encrypts(&self) -> bool {
        self.inner.encrypts()
    }

    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        self.inner.properties(device)
    }

    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        let maker = self.maker(device)?;
        let (handle, inner) = self.inner.listen(device)?;
        Ok((handle, Box::new(FaultListener { inner, maker })))
    }

    fn device_towards(&self, handle: &NetHandle, preferred: u32) -> u32 {
        self.inner.device_towards(handle, preferred)
    }

    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        let maker = self.maker(device)?;
        Ok(Box::new(FaultConnector { inner: self.inner.connect(device, handle)?, maker }))
    }
}

struct FaultListener {
    inner: Box<dyn Listener>,
    maker: Maker,
}

struct FaultConnector {
    inner: Box<dyn Connector>,
    maker: Maker,
}

impl Listener for FaultListener {
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let inner = self.inner.poll_accept()?;
        Ok(inner.map(|inner| -> Box<dyn RecvComm> { Box::new(self.maker.make(inner)) }))
    }
}

impl Connector for FaultConnector {
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let inner = self.inner.poll_connect()?;
        Ok(inner.map(|inner| -> Box<dyn SendComm> { Box::new(self.maker.make(inner)) }))
    }
}

impl Maker {
    fn make<C: ?Sized>(&self, inner: Box<C>) -> FaultComm<C> {
        let number = {
            let mut comms = self.comms.lock().unwrap_or_else(PoisonError::into_inner);
            *comms += 1;
            *comms - 1
        };
        let is_spared = self.plan.only_connection.is_some_and(|only| only != number);
        let seed = self.plan.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        FaultComm {
            inner: Some(inner),
            device: self.device.clone(),
            plan: self.plan.clone(),
            is_spared,
            random: Random(seed),
            requests: 0,
            done: [Done::default(); REQUESTS_MAX],
            stalled_until: None,
            short: None,
            failed: None,
        }
    }
}

/// A communicator with faults.
struct FaultComm<C: ?Sized> {
    /// None once the connection was cut.
    inner: Option<Box<C>>,
    device: String,
    plan: Arc<FaultPlan>,
    is_spared: bool,
    random: Random,
    /// Requests made so far.
    requests: u64,
    /// Requests that are complete underneath and withheld.
    done: [Done; REQUESTS_MAX],
    stalled_until: Option<Instant>,
    /// The receive to shorten.
    short: Option<Request>,
    failed: Option<NetError>,
}

/// A completed request, withheld until `until`, if set.
#[derive(Clone, Copy, Default)]
struct Done {
    request: u32,
    len_bytes: usize,
    until: Option<Instant>,
}

impl<C: Comm + ?Sized> FaultComm<C> {
    /// Whether to delay the next request or test.
    fn is_late(&mut self) -> bool {
        let is_stalled = self.stalled_until.is_some_and(|until| Instant::now() < until);
        is_stalled || self.random.per_mille(self.plan.late_per_mille)
    }

    /// Counts a request; `false` if the caller must repeat it.
    fn begin(&mut self) -> Result<bool, NetError> {
        self.check()?;
        let at = |point: Option<u64>| !self.is_spared && point == Some(self.requests);
        let (stalls, fails, cuts) = (at(self.plan.stall_at), at(self.plan.fail_at), at(self.plan.cut_at));
        if stalls && self.stalled_until.is_none() {
            self.stalled_until = Some(Instant::now() + self.plan.stall);
        }
        if fails || cuts {
            // The other end sees the inner communicator's drop.
            self.inner = None;
            let device = self.device.clone();
            let peer = "the peer (by plan)".to_owned();
            let error = if cuts {
                NetError::Closed { device, peer, mid_message: false }
            } else {
                let reason = format!("request {} was planned to fail", self.requests);
                NetError::Call { device, peer: Some(peer), call: "post", reason }
            };
            return Err(self.failed.insert(error).clone());
        }
        Ok(!self.is_late())
    }

    fn check(&self) -> Result<(), NetError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Calls the inner communicator; an error breaks this one for good.
    fn with<T>(&mut self, call: impl FnOnce(&mut C) -> Result<T, NetError>) -> Result<T, NetError> {
        self.check()?;
        let Some(inner) = self.inner.as_deref_mut() else {
            return Err(NetError::of_call(&self.device, "post", "the connection was cut".to_owned()));
        };
        let result = call(inner);
        self.failed = result.as_ref().err().filter(|error| error.peer().is_some()).cloned();
        result
    }

    fn count(&mut self, request: Option<Request>) -> Option<Request> {
        self.requests += u64::from(request.is_some());
        request
    }
}

impl<C: Comm + ?Sized> Comm for FaultComm<C> {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        // SAFETY: the caller's promise.
        self.with(|inner| unsafe { inner.register(memory) })
    }

    fn reaches_all_memory(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.reaches_all_memory())
    }

    fn set_tag(&mut self, tag: u32) -> bool {
        self.inner.as_mut().is_some_and(|inner| inner.set_tag(tag))
    }

    fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        self.with(|inner| inner.deregister(registration))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        self.check()?;
        if self.is_late() {
            return Ok(None);
        }
        let now = Instant::now();
        if let Some(held) =
            self.done.iter_mut().find(|done| done.until.is_some() && done.request == request.0)
        {
            let is_over = held.until.is_some_and(|until| now >= until);
            held.until = held.until.filter(|_| !is_over);
            return Ok(is_over.then_some(held.len_bytes));
        }
        let Some(mut len_bytes) = self.with(|inner| inner.test(request))? else { return Ok(None) };
        if self.short.take_if(|short| *short == request).is_some() {
            len_bytes = len_bytes.saturating_sub(1);
        }
        if self.random.per_mille(self.plan.held_per_mille) {
            let time = self.plan.held_max.mul_f64(f64::from(self.random.below(1000)) / 1000.0);
            if let Some(free) = self.done.iter_mut().find(|done| done.until.is_none()) {
                *free = Done { request: request.0, len_bytes, until: Some(now + time) };
                return Ok(None);
            }
        }
        Ok(Some(len_bytes))
    }
}

impl SendComm for FaultComm<dyn SendComm> {
    unsafe fn isend(
        &mut self,
        start: *const u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        if !self.begin()? {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let request = self.with(|inner| unsafe { inner.isend(start, len_bytes, registration) })?;
        Ok(self.count(request))
    }

    unsafe fn relocate(&mut self, request: Request, start: *const u8) -> bool {
        // SAFETY: the caller's promise. What is withheld here has left underneath.
        self.inner.as_mut().is_none_or(|inner| unsafe { inner.relocate(request, start) })
    }

    fn streams(&self) -> Vec<Arc<TcpStream>> {
        self.inner.iter().flat_map(|inner| inner.streams()).collect()
    }
}

impl RecvComm for FaultComm<dyn RecvComm> {
    fn be_prompt(&mut self) {
        self.inner.iter_mut().for_each(|inner| inner.be_prompt());
    }

    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        if !self.begin()? {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let request = self.with(|inner| unsafe { inner.irecv(start, max_bytes, registration) })?;
        if !self.is_spared && self.plan.short_at == Some(self.requests) {
            self.short = request;
        }
        Ok(self.count(request))
    }

    unsafe fn flush(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        // SAFETY: the caller's promise.
        self.with(|inner| unsafe { inner.flush(start, len_bytes, registration) })
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % u64::from(bound)) as u32
    }

    fn per_mille(&mut self, share: u32) -> bool {
        share > 0 && self.below(1000) < share
    }
}
