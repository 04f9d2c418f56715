//! Converts the cause of a stopped kernel or connection into the communicator's fault, and reports it to all ranks.

use crate::launch::{
    BACK_OFF, Circle, Fault, Health, LinkError, Notice, Notify, Outstanding, REPLY_TIME, announce,
};
use crate::plan::CallRecord;
use oxccl_shared::abi::Rank;
use std::time::{Duration, Instant};

/// Decides on the rank at fault, on the calling thread or on the proxy's.
pub(super) struct Verdict<'a> {
    pub health: &'a Health,
    pub notify: &'a dyn Notify,
    /// The latest collective of this rank.
    pub latest: Option<CallRecord>,
}

impl Verdict<'_> {
    /// Records a fault and reports it to the other ranks.
    pub fn fail(&self, fault: Fault) -> Outstanding {
        let outstanding = self.health.fail(fault, self.latest);
        announce(self.notify, &outstanding);
        outstanding
    }

    /// Handles a wait for `peer` beyond its `limit`. The peer may itself have waited for another: every rank that times out
    /// reports for which rank it waited. If they wait in a circle, it is for what is `beyond` them, if anything is.
    pub fn overdue(&self, peer: Rank, limit: Duration, beyond: Option<LinkError>) -> Outstanding {
        self.notify.notify(Notice::WaitsFor(Some(peer)));
        self.listen(REPLY_TIME);
        match (self.health.waits().circle(peer), beyond) {
            (Circle::Ours, Some(error)) => return self.fail(Fault::Link { error }),
            (Circle::None, _) => {}
            // Another rank, or another thread of this one, may know for what they wait.
            _ => self.listen(REPLY_TIME),
        }
        self.fail(Fault::Timeout { rank: self.health.waits().guilty(peer), limit })
    }

    /// Handles a mismatch with `peer`, which answers with its own call: that makes the better message.
    pub fn mismatch(&self, peer: Rank) -> Outstanding {
        if let Some(latest) = self.latest {
            self.health.remembered(latest.seq).for_each(|record| self.notify.notify(Notice::Call(record)));
            self.listen(REPLY_TIME);
        }
        self.fail(Fault::Mismatch { rank: peer, theirs: None })
    }

    /// Gives the other ranks' reports time to arrive.
    pub fn listen(&self, time: Duration) {
        let asked = Instant::now();
        while !self.health.is_stopped() && asked.elapsed() < time {
            std::thread::sleep(BACK_OFF);
        }
    }
}
