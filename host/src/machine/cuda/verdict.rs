//! From what stopped a kernel or a connection to the communicator's fault, heard by all ranks.

use crate::launch::{Fault, Health, NAP, Outstanding, REPLY_TIME, Tell, Told, announce};
use crate::plan::CallRecord;
use std::time::{Duration, Instant};

/// Who decides what is to blame, on the thread that calls or on the proxy's.
pub(super) struct Verdict<'a> {
    pub health: &'a Health,
    pub tell: &'a dyn Tell,
    /// The latest collective of this rank.
    pub latest: Option<CallRecord>,
}

impl Verdict<'_> {
    /// Records a fault and tells the others.
    pub fn fail(&self, fault: Fault) -> Outstanding {
        let outstanding = self.health.fail(fault, self.latest);
        announce(self.tell, &outstanding);
        outstanding
    }

    /// Somebody waited too long for `peer`, who may itself have waited for another: everybody who gives up says for whom it waited.
    pub fn overdue(&self, peer: u32, waited: Duration) -> Outstanding {
        self.tell.tell(Told::WaitsFor(Some(peer)));
        self.listen(REPLY_TIME);
        self.fail(Fault::Timeout { rank: self.health.waits().guilty(peer), waited })
    }

    /// `peer` is in another operation. It answers with its own call, which makes the better message.
    pub fn mismatch(&self, peer: u32) -> Outstanding {
        if let Some(latest) = self.latest {
            self.health.remembered(latest.seq).for_each(|record| self.tell.tell(Told::Call(record)));
            self.listen(REPLY_TIME);
        }
        self.fail(Fault::Mismatch { rank: peer, theirs: None })
    }

    /// Gives the others a moment to say what they know.
    pub fn listen(&self, time: Duration) {
        let asked = Instant::now();
        while !self.health.is_stopped() && asked.elapsed() < time {
            std::thread::sleep(NAP);
        }
    }
}
