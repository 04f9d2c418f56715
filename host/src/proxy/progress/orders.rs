//! The user's thread's side of a proxy: gives orders, learns how far they are, ends it.

use super::engine::{Progress, ProxyParts};
use super::error::ProxyFailure;
use super::order::{Keep, ORDERS_WAITING_MAX, ProxyOrder, ProxyShared, WISH_ABORT, WISH_STOP};
use super::overflow::Overflow;
use oxccl_shared::fifo::OrderProducer;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

/// An order that was given; orders are done when all before them are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// The giving end.
pub struct ProxyOrders {
    producer: OrderProducer<'static, ProxyOrder, ORDERS_WAITING_MAX>,
    shared: &'static ProxyShared,
    failure: Arc<OnceLock<ProxyFailure>>,
    given: u64,
    sleeper: Option<Thread>,
    overflow: Arc<Overflow>,
    /// Dropped last: what the references lie in.
    _keep: Keep,
}

/// A proxy, and where it takes its orders from.
pub fn proxy(parts: ProxyParts) -> (ProxyOrders, Progress) {
    let keep = Arc::new(ProxyShared::default());
    // SAFETY: it lies in the Arc, which both ends keep beside the reference.
    let shared: &'static ProxyShared = unsafe { NonNull::from(&*keep).as_ref() };
    // SAFETY: there is no other giving end.
    let producer = unsafe { shared.orders.producer() };
    // SAFETY: there is no other taking end.
    let source = unsafe { shared.orders.consumer() };
    let (failure, overflow) = (Arc::new(OnceLock::new()), Arc::new(Overflow::default()));
    let progress = Progress::new(source, shared, failure.clone(), overflow.clone(), keep.clone(), parts);
    let orders = ProxyOrders { producer, shared, failure, given: 0, sleeper: None, overflow, _keep: keep };
    (orders, progress)
}

impl ProxyOrders {
    /// Gives an order, or gives it back if too many wait.
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

    /// Gives an order however many wait, without waiting: what the FIFO has no room for waits behind it, in order, in memory that
    /// grows. Not to be mixed with [`Self::give`], which knows the FIFO only.
    #[inline]
    pub fn queue(&mut self, order: ProxyOrder) -> Ticket {
        let overflow = &self.overflow;
        let refused = if overflow.is_empty() { self.producer.push(order).err() } else { Some(order) };
        if let Some(order) = refused {
            overflow.push(order);
        }
        self.given += 1;
        self.wake();
        Ticket(self.given)
    }

    /// Whether an order and all before it are done: everything sent has left, everything received is published.
    #[inline]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        // ACQUIRE pairs with RELEASE in engine::complete.
        self.shared.completed.load_acquire() >= ticket.0
    }

    /// Whether everything given is done.
    pub fn is_all_done(&self) -> bool {
        self.is_done(Ticket(self.given))
    }

    /// Whether a connection has failed. One load.
    #[inline]
    pub fn has_failed(&self) -> bool {
        // ACQUIRE pairs with RELEASE in Progress::report.
        self.shared.failed.load_acquire() != 0
    }

    /// What failed first, if something has.
    pub fn failure(&self) -> Option<&ProxyFailure> {
        self.failure.get()
    }

    /// Asks the proxy to end when all orders are done.
    pub fn stop(&self) {
        // RELEASE pairs with ACQUIRE in Progress::has_ended: orders come first.
        self.shared.wish.store_release(WISH_STOP);
        self.wake();
    }

    /// Asks the proxy to end now. What is under way is lost; the other ends learn it from the network.
    pub fn abort(&self) {
        // RELEASE: as above.
        self.shared.wish.store_release(WISH_ABORT);
        self.wake();
    }

    /// Whom to wake when there is an order.
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
