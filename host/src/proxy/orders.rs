//! The user's thread's side of a proxy: issues orders, checks their completion, stops the proxy.

use super::arrivals::Arrivals;
use super::end::ProxyEnd;
use super::engine::{Progress, ProxyParts};
use super::error::ProxyFailure;
use super::order::{Keep, ORDERS_WAITING_MAX, ProxyOrder, ProxyShared, WISH_ABORT, WISH_STOP};
use super::overflow::Overflow;
use oxccl_shared::fifo::OrderProducer;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

/// An issued order. It is complete when it and all earlier orders are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// The issuing end.
pub struct ProxyOrders {
    producer: OrderProducer<'static, ProxyOrder, ORDERS_WAITING_MAX>,
    shared: &'static ProxyShared,
    failure: Arc<OnceLock<ProxyFailure>>,
    given: u64,
    sleeper: Option<Thread>,
    /// Set if both ends are in one process.
    overflow: Option<Arc<Overflow>>,
    /// Set if both ends are in one process.
    arrivals: Option<Arc<Arrivals<ProxyEnd>>>,
    /// Dropped last: it keeps the referenced memory alive.
    _keep: Keep,
}

/// A proxy in this process, and its source of orders.
pub fn proxy(parts: ProxyParts) -> (ProxyOrders, Progress) {
    let shared = Arc::new(ProxyShared::default());
    let start = NonNull::from(&*shared);
    let failure = Arc::new(OnceLock::new());
    let (overflow, arrivals) = (Arc::new(Overflow::default()), Arc::new(Arrivals::new()));
    // SAFETY: in the Arc, which both ends keep; there are no other ends.
    let (orders, progress) = unsafe {
        let orders = attach_orders(start, shared.clone(), failure.clone());
        (orders, attach_proxy(start, shared, failure, parts))
    };
    let progress = progress.with_overflow(overflow.clone(), arrivals.clone());
    (ProxyOrders { overflow: Some(overflow), arrivals: Some(arrivals), ..orders }, progress)
}

/// A proxy without a queue, whose orders are [offered](Progress::offer) by the thread that drives it.
pub fn driven_proxy(parts: ProxyParts) -> Progress {
    let shared = Arc::new(ProxyShared::default());
    // SAFETY: in the Arc, which the proxy keeps.
    let words: &'static ProxyShared = unsafe { NonNull::from(&*shared).as_ref() };
    Progress::new(None, words, Arc::default(), shared, parts)
}

/// The issuing end of a proxy whose memory is shared, possibly with another process.
///
/// # Safety
/// 1. `shared` is aligned for its type, was zeroed when the proxy began, and lives as long as `keep`.
/// 2. There is one issuing end.
pub unsafe fn attach_orders(
    shared: NonNull<ProxyShared>,
    keep: Keep,
    failure: Arc<OnceLock<ProxyFailure>>,
) -> ProxyOrders {
    // SAFETY: obligation 1; the reference is stored with `keep`.
    let shared: &'static ProxyShared = unsafe { shared.as_ref() };
    // SAFETY: obligation 2.
    let producer = unsafe { shared.orders.producer() };
    ProxyOrders {
        producer,
        shared,
        failure,
        given: 0,
        sleeper: None,
        overflow: None,
        arrivals: None,
        _keep: keep,
    }
}

/// The proxy whose orders come through shared memory.
///
/// # Safety
/// 1. As [`attach_orders`], the first.
/// 2. There is one proxy.
pub unsafe fn attach_proxy(
    shared: NonNull<ProxyShared>,
    keep: Keep,
    failure: Arc<OnceLock<ProxyFailure>>,
    parts: ProxyParts,
) -> Progress {
    // SAFETY: obligation 1; the reference is stored with `keep`.
    let shared: &'static ProxyShared = unsafe { shared.as_ref() };
    // SAFETY: obligation 2.
    let source = unsafe { shared.orders.consumer() };
    Progress::new(Some(source), shared, failure, keep, parts)
}

impl ProxyOrders {
    /// Issues an order, or returns it if the queue is full.
    ///
    /// # Errors
    /// The order: try again when the proxy has taken some.
    #[inline]
    pub fn give(&mut self, order: ProxyOrder) -> Result<Ticket, ProxyOrder> {
        self.producer.push(order)?;
        self.given += 1;
        self.wake();
        Ok(Ticket(self.given))
    }

    /// Issues an order without blocking, however full the queue is: orders beyond the FIFO's capacity wait behind it,
    /// in order, in memory that grows. Do not mix with [`Self::give`], which uses the FIFO only.
    ///
    /// # Errors
    /// The order, if the proxy is of another process and the queue is full.
    #[inline]
    pub fn queue(&mut self, order: ProxyOrder) -> Result<Ticket, ProxyOrder> {
        let Some(overflow) = &self.overflow else { return self.give(order) };
        let refused = if overflow.is_empty() { self.producer.push(order).err() } else { Some(order) };
        if let Some(order) = refused {
            overflow.push(order);
        }
        self.given += 1;
        self.wake();
        Ok(Ticket(self.given))
    }

    /// Adds a connection, for orders that are issued from now on. No if the proxy is of another process, which cannot have it.
    #[must_use = "the connection may be gone"]
    pub fn add(&self, end: ProxyEnd) -> bool {
        self.arrivals.as_ref().map(|arrivals| arrivals.push(end)).is_some()
    }

    /// Whether an order and all before it are complete: everything sent has left, everything received is published.
    #[inline]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        // ACQUIRE pairs with RELEASE in engine::complete.
        self.shared.completed.load_acquire() >= ticket.0
    }

    /// Whether all issued orders are complete.
    pub fn is_all_done(&self) -> bool {
        self.is_done(Ticket(self.given))
    }

    /// Whether a connection has failed. One load.
    #[inline]
    pub fn has_failed(&self) -> bool {
        // ACQUIRE pairs with RELEASE in Progress::report.
        self.shared.failed.load_acquire() != 0
    }

    /// The first failure, if there is one and the proxy is of this process.
    pub fn failure(&self) -> Option<&ProxyFailure> {
        self.failure.get()
    }

    /// Asks the proxy to end when all orders are complete.
    pub fn stop(&self) {
        // RELEASE pairs with ACQUIRE in Progress::has_ended: orders come first.
        self.shared.wish.store_release(WISH_STOP);
        self.wake();
    }

    /// Asks the proxy to end now. Operations in flight are lost; the network tells the other ends.
    pub fn abort(&self) {
        // RELEASE: as above.
        self.shared.wish.store_release(WISH_ABORT);
        self.wake();
    }

    /// The thread to wake for an order.
    pub(super) fn wakes(&mut self, thread: Thread) {
        self.sleeper = Some(thread);
    }

    #[inline]
    fn wake(&self) {
        if let Some(sleeper) = &self.sleeper {
            sleeper.unpark();
        }
    }
}
