//! Networks that a waiting rank drives, and what their failures mean to its communicator.

use super::{LEFT_GRACE, WaitContext};
use crate::launch::health::Fault;
use crate::launch::net_links::NetFailure;
use oxccl_device::gpu::{Stop, Wait};
use std::time::Instant;

impl WaitContext {
    /// Drives the connections over a network. Returns how many steps went on.
    #[inline]
    pub(super) fn drive_network(&self, on: Wait) -> Result<usize, Stop> {
        let mut net_links = self.net_links.borrow_mut();
        let Some(net) = net_links.as_mut() else { return Ok(0) };
        let moved = net.do_work();
        let Some(failure) = net.failure().filter(|_| moved == 0) else { return Ok(moved) };
        if self.may_be_told_better(on, &failure) {
            return Ok(0);
        }
        if let Some(post_mortem) = net.post_mortem().filter(|_| !self.health.is_stopped()) {
            tracing::warn!("{post_mortem}");
        }
        drop(net_links);
        Err(self.end_by(&failure))
    }

    /// The same for a network that reduces.
    #[inline]
    pub(super) fn drive_reduction(&self, on: Wait) -> Result<usize, Stop> {
        let mut coll_links = self.coll_links.borrow_mut();
        let Some(coll) = coll_links.as_mut() else { return Ok(0) };
        let moved = coll.do_work();
        let Some(failure) = coll.failure().filter(|_| moved == 0) else { return Ok(moved) };
        if self.may_be_told_better(on, &failure) {
            return Ok(0);
        }
        drop(coll_links);
        Err(self.end_by(&failure))
    }

    /// The monitor may say better what has become of a rank that the network has lost, and what we wait for may come over another
    /// connection. Both have some time for it.
    #[cold]
    fn may_be_told_better(&self, on: Wait, failure: &NetFailure) -> bool {
        let since = self.net_broken_since.get().unwrap_or_else(Instant::now);
        self.net_broken_since.set(Some(since));
        (failure.is_of_network || failure.peer != on.peer) && since.elapsed() < LEFT_GRACE * 2
    }

    #[cold]
    fn end_by(&self, failure: &NetFailure) -> Stop {
        if failure.is_mismatch {
            return self.refuse_rank(failure.peer);
        }
        self.fail(Fault::Link { error: failure.error });
        Stop
    }
}
