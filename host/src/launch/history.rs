//! A rank's calls so far: the numbers of its collectives, and the tag of the latest one's slots.

use super::health::Health;
use crate::plan::{Call, CallRecord};

/// The collectives started.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct History {
    /// Number of collectives.
    seq: u64,
    /// Digest of all of them, in order.
    digest: u32,
}

impl History {
    /// Starts a collective.
    #[inline]
    pub fn begin(&mut self, call: &Call, health: &Health) -> CallRecord {
        let record = CallRecord { seq: self.seq, call: *call };
        self.seq += 1;
        // A rank that waits for no peer in a call does not detect that it called another operation; its next slot
        // shows it.
        self.digest = self.digest.rotate_left(7).wrapping_mul(0x9e37_79b9) ^ record.tag();
        health.record(&record);
        record
    }

    /// How many collectives were started, and the digest of all of them.
    pub fn all(&self) -> (u64, u32) {
        (self.seq, self.digest)
    }

    /// The number of the latest collective.
    pub fn calls(&self) -> u64 {
        self.seq.saturating_sub(1)
    }

    /// A call that is no collective: only two ranks know of it.
    pub fn outside(&self, call: &Call) -> CallRecord {
        CallRecord { seq: self.seq, call: *call }
    }

    /// The tag of the latest collective's slots.
    pub fn tag(&self) -> u32 {
        self.digest
    }
}
