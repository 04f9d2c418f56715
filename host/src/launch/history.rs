//! What a rank has called so far: its collectives' numbers, and the tag that slots of the latest carry.

use super::health::Health;
use crate::plan::{Call, CallRecord};

/// The collectives started.
#[derive(Default, Debug)]
pub(crate) struct History {
    /// How many.
    seq: u64,
    /// Digest of all of them, in order.
    digest: u32,
}

impl History {
    /// A collective starts.
    pub fn begin(&mut self, call: &Call, health: &Health) -> CallRecord {
        let record = CallRecord { seq: self.seq, call: *call };
        self.seq += 1;
        // A rank whose part of a call needs nobody does not notice that it called another: the next slot it meets tells.
        self.digest = self.digest.rotate_left(7).wrapping_mul(0x9e37_79b9) ^ record.tag();
        health.record(&record);
        record
    }

    /// A call that is no collective: only two ranks know of it.
    pub fn outside(&self, call: &Call) -> CallRecord {
        CallRecord { seq: self.seq, call: *call }
    }

    /// What the slots of the latest collective carry.
    pub fn tag(&self) -> u32 {
        self.digest
    }
}
