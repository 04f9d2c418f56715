//! The proxy's loop: takes orders, distributes them over connections, and drives these.

use super::arrivals::Arrivals;
use super::counters::SubOp;
use super::end::{EndKey, ProxyEnd, waits_for_peer};
use super::error::{EndError, EndFault, ProxyFailure};
use super::expansion::Expansion;
use super::order::{Keep, ORDERS_WAITING_MAX, Operation, ProxyOrder, ProxyShared, WISH_ABORT, WISH_STOP};
use super::overflow::Overflow;
use super::pattern::{self, Amount, ProxyChannel, Way};
use super::pool::{List, Pool, Queued};
use super::trace::{Event, Trace};
use oxccl_shared::abi::{ChannelId, Rank};
use oxccl_shared::fifo::OrderConsumer;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Most orders open at once, that is, taken and incomplete. A later one waits, even if it could complete at once: so
/// this also limits the messages of a group.
pub const ORDERS_OPEN_MAX: usize = 1024;
/// Queued sub-operations that there is room for, for each connection.
const SUBS_EACH: usize = 16;
/// Orders taken in one turn.
const BATCH: usize = 16;
/// Between two clock reads at most this part of the timeout counts: a process that was stopped, or whose host slept,
/// knows nothing of that time.
const GAPS_MIN: u32 = 4;
/// How long a head waits for a network that reduces before the other heads hear of it.
const LONG_WAIT: Duration = Duration::from_millis(500);

/// The parts of a proxy.
pub struct ProxyParts {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// This rank's positions in rings and trees, by channel.
    pub channels: Box<[ProxyChannel]>,
    /// The connections to and from other hosts; for each channel at most one with each peer in each direction.
    pub ends: Vec<ProxyEnd>,
    /// Timeout for the other end of a connection with an operation in progress; none waits for ever.
    pub timeout: Option<Duration>,
}

/// A connection in the loop.
struct DrivenEnd {
    end: ProxyEnd,
    /// What follows the running sub-operation; empty without one.
    queue: List,
    /// The order of the running sub-operation.
    ticket: u64,
    is_active: bool,
    /// Transitions so far, and at the last clock read.
    moved: u64,
    moved_seen: u64,
    /// When a clock read last found that it had moved, or that it waited for this rank's own kernel.
    late_since: Duration,
}

/// The proxy of one rank: drives all its connections to other hosts. One thread at a time uses it.
pub struct Progress {
    /// The queue of orders; none where they are [offered](Self::offer).
    source: Option<OrderConsumer<'static, ProxyOrder, ORDERS_WAITING_MAX>>,
    /// The queue behind `source`, if there is one.
    overflow: Option<Arc<Overflow>>,
    /// Connections that came while it runs, if any may.
    arrivals: Option<Arc<Arrivals<ProxyEnd>>>,
    shared: &'static ProxyShared,
    failure: Arc<OnceLock<ProxyFailure>>,
    rank: Rank,
    nranks: u32,
    channels: Box<[ProxyChannel]>,
    lanes: Vec<DrivenEnd>,
    /// Lanes by channel, peer and direction, sorted.
    lookup: Vec<(EndKey, u16)>,
    /// Of the latest order.
    expansion: Expansion,
    /// Lanes that have something to do.
    active: Vec<u16>,
    pool: Pool,
    /// Incomplete sub-operations of each open order, by ticket.
    missing: Box<[u32]>,
    /// The oldest open order.
    first_open: u64,
    /// The next order's ticket.
    next_ticket: u64,
    turn: u64,
    timeout: Option<Duration>,
    trace: Trace,
    traced_at_clock: u64,
    /// The last clock read.
    checked_at: Duration,
    waits_long: Option<Rank>,
    /// Dropped last: the memory of `shared` and `source`.
    _keep: Keep,
}

impl DrivenEnd {
    fn new(end: ProxyEnd) -> DrivenEnd {
        DrivenEnd {
            end,
            queue: List::EMPTY,
            ticket: 0,
            is_active: false,
            moved: 0,
            moved_seen: 0,
            late_since: Duration::ZERO,
        }
    }

    /// Begins a sub-operation; the end is idle.
    #[inline]
    fn begin(&mut self, number: u16, Queued { sub, reduced, ticket }: Queued, trace: &mut Trace, turn: u64) {
        self.ticket = ticket;
        self.end.begin(sub, reduced);
        trace.note(turn, Event::Began { end: number, tag: sub.tag, steps: sub.steps });
    }
}

impl Progress {
    /// A proxy that takes orders from `source`, or is offered them.
    pub(super) fn new(
        source: Option<OrderConsumer<'static, ProxyOrder, ORDERS_WAITING_MAX>>,
        shared: &'static ProxyShared,
        failure: Arc<OnceLock<ProxyFailure>>,
        keep: Keep,
        parts: ProxyParts,
    ) -> Progress {
        let ProxyParts { rank, nranks, channels, ends, timeout } = parts;
        let lanes: Vec<DrivenEnd> = ends.into_iter().map(DrivenEnd::new).collect();
        let mut lookup: Vec<(EndKey, u16)> =
            lanes.iter().zip(0u16..).map(|(lane, index)| (lane.end.key(), index)).collect();
        lookup.sort_unstable();
        Progress {
            source,
            overflow: None,
            arrivals: None,
            shared,
            failure,
            rank,
            nranks,
            channels,
            expansion: Expansion::new(lanes.len()),
            active: Vec::with_capacity(lanes.len()),
            // One order puts at most one sub-operation on a connection. Most put them on few.
            pool: Pool::new(lanes.len() * SUBS_EACH + ORDERS_OPEN_MAX),
            lanes,
            lookup,
            missing: vec![0; ORDERS_OPEN_MAX].into_boxed_slice(),
            first_open: 0,
            next_ticket: 0,
            turn: 0,
            timeout,
            trace: Trace::new(),
            traced_at_clock: 0,
            checked_at: Duration::ZERO,
            waits_long: None,
            _keep: keep,
        }
    }

    /// The same, which also takes orders from `overflow`, and connections from `arrivals`.
    pub(super) fn with_overflow(
        self,
        overflow: Arc<Overflow>,
        arrivals: Arc<Arrivals<ProxyEnd>>,
    ) -> Progress {
        Progress { overflow: Some(overflow), arrivals: Some(arrivals), ..self }
    }

    /// Takes orders and makes progress, without blocking. Returns the number of orders and steps that advanced.
    #[inline]
    pub fn do_work(&mut self) -> usize {
        self.turn += 1;
        let mut moved = self.take_orders();
        let mut at = 0;
        while let Some(&lane) = self.active.get(at) {
            let (steps, stays) = self.drive(lane);
            moved += steps;
            if stays {
                at += 1;
            } else {
                self.lanes[lane as usize].is_active = false;
                self.active.swap_remove(at);
            }
        }
        moved
    }

    /// Adds a connection, for orders that are taken from now on. It allocates.
    pub fn add(&mut self, end: ProxyEnd) {
        let (key, number) = (end.key(), self.lanes.len() as u16);
        let at = self.lookup.partition_point(|(other, _)| *other < key);
        self.lookup.insert(at, (key, number));
        self.lanes.push(DrivenEnd::new(end));
        self.pool.grow(SUBS_EACH);
        self.active.reserve(self.lanes.len() - self.active.len());
        self.expansion.forget(self.lanes.len());
    }

    /// All connections.
    pub(super) fn ends(&mut self) -> impl Iterator<Item = &mut ProxyEnd> {
        self.lanes.iter_mut().map(|lane| &mut lane.end)
    }

    /// One connection.
    pub(super) fn end(&mut self, key: EndKey) -> Option<&mut ProxyEnd> {
        let found = self.lookup.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(&mut self.lanes[self.lookup[found].1 as usize].end)
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether to end: after an abort, or after a stop once all earlier orders are complete.
    pub fn has_ended(&self) -> bool {
        // ACQUIRE pairs with RELEASE in ProxyOrders::stop: orders given before are in the queue.
        match self.shared.wish.load_acquire() {
            WISH_ABORT => true,
            WISH_STOP => {
                let is_done = self.first_open == self.next_ticket
                    && !self.overflows()
                    && self.source.as_ref().is_none_or(|source| source.is_empty());
                is_done || self.failure.get().is_some()
            }
            _ => false,
        }
    }

    /// Checks timeouts: finds connections with an operation in progress that have waited too long for the other end.
    /// `now` is the time since any fixed start. Call it at intervals when nothing moves.
    pub fn check(&mut self, now: Duration) {
        if self.trace.count() != self.traced_at_clock {
            self.trace.note(self.turn, Event::Clock { ms: now.as_millis() as u64 });
            self.traced_at_clock = self.trace.count();
        }
        self.waits_long = None;
        let Some(timeout) = self.timeout else { return };
        let gap = now.saturating_sub(self.checked_at);
        let unseen = gap.saturating_sub(timeout / GAPS_MIN);
        self.checked_at = now;
        for at in (0..self.active.len()).rev() {
            let lane = self.active[at];
            let this = &mut self.lanes[lane as usize];
            let outstanding = this.end.outstanding();
            let waits = outstanding.is_some_and(|was| waits_for_peer(&this.end, &was.counters));
            if this.moved != this.moved_seen || !waits {
                (this.moved_seen, this.late_since) = (this.moved, now);
                continue;
            }
            this.late_since += unseen;
            let waited = now.saturating_sub(this.late_since);
            if let ProxyEnd::Coll(end) = &this.end
                && waited > LONG_WAIT.min(timeout / GAPS_MIN)
            {
                self.waits_long = Some(end.place().peer);
            }
            if waited > timeout {
                let why = match &this.end {
                    ProxyEnd::Coll(end) => EndFault::Unreduced { awaited: end.awaited(), limit: timeout },
                    _ => EndFault::Timeout { limit: timeout },
                };
                let error = EndError { place: this.end.place(), outstanding, why };
                this.is_active = false;
                self.active.swap_remove(at);
                self.fail(lane, Arc::new(error));
            }
        }
    }

    /// The head for which this rank has waited for long at a network that reduces, as of the latest check.
    pub fn waits_long(&self) -> Option<Rank> {
        self.waits_long
    }

    /// Takes an order that did not come through the queue, or returns it if there is no room for it now.
    ///
    /// # Errors
    /// The order: try again when some are complete.
    #[inline]
    pub fn offer(&mut self, order: ProxyOrder) -> Result<(), ProxyOrder> {
        if !self.has_room() {
            return Err(order);
        }
        self.take(&order);
        Ok(())
    }

    /// Takes what is in the queue. Returns how many.
    #[inline]
    fn take_orders(&mut self) -> usize {
        let mut taken = 0;
        while taken < BATCH
            && self.has_room()
            && let Some(order) = self.next_order()
        {
            if self.arrivals.as_ref().is_some_and(|arrivals| !arrivals.is_empty()) {
                self.admit();
            }
            self.take(&order);
            taken += 1;
        }
        taken
    }

    /// Adds the connections that have come.
    #[cold]
    fn admit(&mut self) {
        let ends = self.arrivals.as_ref().map(|arrivals| arrivals.take()).unwrap_or_default();
        ends.into_iter().for_each(|end| self.add(end));
    }

    /// Whether another order may be taken: it has at most one sub-operation for each connection.
    #[inline]
    fn has_room(&self) -> bool {
        self.next_ticket - self.first_open < ORDERS_OPEN_MAX as u64
            && self.pool.free_count() >= self.lanes.len()
    }

    #[inline]
    fn next_order(&mut self) -> Option<ProxyOrder> {
        self.source.as_ref()?;
        // Checked first: see `Overflow::is_empty`.
        let overflows = self.overflows();
        self.source.as_mut()?.pop().or_else(|| self.overflow.as_ref().filter(|_| overflows)?.pop())
    }

    /// Whether the overflow holds orders.
    #[inline]
    fn overflows(&self) -> bool {
        self.overflow.as_ref().is_some_and(|overflow| !overflow.is_empty())
    }

    /// The first failure, if there is one.
    #[inline]
    pub fn failure(&self) -> Option<&ProxyFailure> {
        self.failure.get()
    }

    fn take(&mut self, order: &ProxyOrder) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.trace.note(self.turn, Event::Taken { ticket, tag: order.tag });
        if !self.expand(order) {
            // It stays open: a thread that waits for it finds the failure.
            self.missing[ticket as usize % ORDERS_OPEN_MAX] = 1;
            self.report(None, format!("an order that means nothing: {order:?}"));
            return;
        }
        let mut subs = 0;
        let Progress { expansion, lanes, active, pool, trace, turn, .. } = self;
        for &(number, steps) in &expansion.parts {
            let lane = &mut lanes[number as usize];
            let sub = SubOp { tag: order.tag, protocol: expansion.protocol, steps };
            let reduced = expansion.reduced(order, lane.end.place().channel);
            let queued = Queued { sub, reduced, ticket };
            if lane.end.is_idle() {
                lane.begin(number, queued, trace, *turn);
            } else if !pool.push(&mut lane.queue, queued) {
                continue;
            }
            subs += 1;
            if !lane.is_active {
                lane.is_active = true;
                active.push(number);
            }
        }
        self.missing[ticket as usize % ORDERS_OPEN_MAX] = subs;
        if subs == 0 {
            complete(&mut self.first_open, self.next_ticket, &self.missing, self.shared);
        }
    }

    /// Finds out what an order puts on which connection, unless it is the same as the latest one. No if it means nothing.
    #[inline]
    fn expand(&mut self, order: &ProxyOrder) -> bool {
        self.expansion.is_of(order) || self.expand_anew(order)
    }

    fn expand_anew(&mut self, order: &ProxyOrder) -> bool {
        let channels = order.first_channel..order.first_channel.saturating_add(order.nchannels);
        let known = |op: &Operation| {
            let places = self.channels.get(channels.start as usize..channels.end as usize);
            places.is_some_and(|places| places.iter().all(|place| pattern::is_known(op, place)))
        };
        let Some(op) = order.decode().filter(known) else { return false };
        let Progress { channels: places, lanes, lookup, expansion, .. } = self;
        expansion.begin(&op);
        for index in 0..order.nchannels {
            let channel = order.first_channel + index;
            let mut emit = |peer: Rank, way: Way, amount: Amount| {
                let key = (ChannelId(channel), peer, way == Way::Send);
                // The other ranks are on this host.
                let Ok(found) = lookup.binary_search_by_key(&key, |(key, _)| *key) else { return };
                let number = lookup[found].1;
                let steps = match amount {
                    Amount::Steps(carried) => carried.slots,
                    Amount::Bytes(len_bytes) => {
                        lanes[number as usize].end.message_steps(op.protocol, len_bytes)
                    }
                };
                if steps > 0 {
                    expansion.parts.push((number, steps));
                }
            };
            let place = &places[channel as usize];
            pattern::expand(&op, index, place, self.rank, self.nranks, &mut emit);
        }
        true
    }

    /// What an order puts on which connection, which may be remembered, or not.
    #[cfg(test)]
    pub(super) fn parts_of(&mut self, order: &ProxyOrder, may_remember: bool) -> Option<Vec<(u16, u64)>> {
        let is_known = if may_remember { self.expand(order) } else { self.expand_anew(order) };
        is_known.then(|| self.expansion.parts.clone())
    }

    /// Drives one connection. Returns the number of transitions and whether there is more to do.
    #[inline]
    fn drive(&mut self, number: u16) -> (usize, bool) {
        let lane = &mut self.lanes[number as usize];
        let mut moved = 0;
        loop {
            let steps = match lane.end.progress() {
                Ok(steps) => steps,
                Err(error) => {
                    self.fail(number, error);
                    return (moved, false);
                }
            };
            moved += steps;
            lane.moved += steps as u64;
            // Not by the steps: the last thing to happen may be that the operation header is found to have left.
            if !lane.end.is_idle() {
                if steps > 0 {
                    let counters = lane.end.outstanding().map(|was| was.counters).unwrap_or_default();
                    self.trace.note_moved(self.turn, number, &counters);
                }
                return (moved, true);
            }
            let ticket = lane.ticket;
            self.trace.note(self.turn, Event::Ended { end: number, ticket });
            self.missing[ticket as usize % ORDERS_OPEN_MAX] -= 1;
            if self.first_open == ticket {
                complete(&mut self.first_open, self.next_ticket, &self.missing, self.shared);
            }
            let Some(queued) = self.pool.pop(&mut lane.queue) else { return (moved, false) };
            lane.begin(number, queued, &mut self.trace, self.turn);
        }
    }

    #[cold]
    fn fail(&mut self, number: u16, error: Arc<EndError>) {
        self.trace.note(self.turn, Event::Failed { end: number });
        let said = error.to_string();
        self.report(Some(error), said);
    }

    /// Records the first failure, with a post-mortem.
    #[cold]
    fn report(&mut self, error: Option<Arc<EndError>>, said: String) {
        if self.failure.get().is_none() {
            let post_mortem = self.post_mortem();
            tracing::error!(rank = %self.rank, "{said}");
            tracing::debug!(rank = %self.rank, "{post_mortem}");
            let _ = self.failure.set(ProxyFailure { rank: self.rank, error, said, post_mortem });
            // RELEASE pairs with ACQUIRE in ProxyOrders::failure (through the OnceLock, for those of this process).
            self.shared.failed.store_release(1);
        }
    }

    /// The state of every connection and the latest events.
    pub fn post_mortem(&self) -> String {
        let mut said = format!(
            "proxy of rank {}: orders {} to {} are open, turn {}\n",
            self.rank, self.first_open, self.next_ticket, self.turn
        );
        let outstanding = self.lanes.iter().filter_map(|lane| Some((lane, lane.end.outstanding()?)));
        for (lane, was) in outstanding {
            let _ = writeln!(said, "  {}: order {}, {was}", lane.end.place(), lane.ticket);
        }
        said.push_str("lately:\n");
        let places = |number: u16| self.lanes[number as usize].end.place();
        let _ = self.trace.tell(&places, &mut said);
        said
    }
}

/// Publishes the number of complete orders.
fn complete(first_open: &mut u64, next_ticket: u64, missing: &[u32], shared: &ProxyShared) {
    let before = *first_open;
    while *first_open < next_ticket && missing[*first_open as usize % ORDERS_OPEN_MAX] == 0 {
        *first_open += 1;
    }
    if *first_open != before {
        // RELEASE pairs with ACQUIRE in ProxyOrders::is_done: slots sent and published come first.
        shared.completed.store_release(*first_open);
    }
}
